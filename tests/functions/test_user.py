"""Functions of a project: found by their hints, refused with file and line, run over Arrow columns."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.core.errors import ProjectError
from headrace.functions.expansion import expand
from headrace.functions.user import UserFunction, user_functions
from headrace.sql.query import SqlError, parse

FILE = '''
"""Functions of a shop."""
from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Optional, TypedDict

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

import headrace


@dataclass
class Point:
    x: float
    y: Optional[int]


class Named(TypedDict):
    name: str


def helper(a, b):
    return a


def _hidden(a: int) -> int:
    return a


def double_it(a: int) -> int:
    """Twice as much."""
    return 2 * a


def join(a: str, b: Optional[str] = None, sep: str = "-") -> str:
    return a + sep + str(b)


def everything(i: int, f: float, s: str, b: bool, y: bytes, t: datetime, d: date, m: Decimal) -> list[str]:
    return [type(one).__name__ for one in (i, f, s, b, y, t, d, m)]


def shift(p: Point, by: dict[str, int]) -> Point:
    return Point(p.x + by["x"], p.y)


def names(people: list[Named]) -> dict[str, Named]:
    return {one["name"].lower(): one for one in people}


@headrace.function(returns="double")
def halves(v: pa.Array) -> pa.Array:
    return pc.divide(pc.cast(v, pa.float64()), 2)


def as_series(v: pd.Series) -> Annotated[pd.Series, "bigint"]:
    return v + 1


def spread(v: pd.Series) -> float:
    return v.max() - v.min()


def weighted(v: pa.Array, w: pa.Array) -> float:
    return pc.sum(pc.multiply(v, w))


@headrace.function(aggregate=True)
def longest(texts: list[str]) -> str | None:
    return max(texts, key=len, default=None)


def no_result(a: int):
    return a


def no_hint(a: int, b) -> int:
    return a


def odd(a: int) -> set[int]:
    return {a}


def mixed(a: pa.Array, b: int) -> pa.Array:
    return a


def unsaid(a: pa.Array) -> pa.Array:
    return a


def wrong(a: int) -> int:
    return "text"


def short(a: pa.Array) -> Annotated[pa.Array, "bigint"]:
    return a[:0]
'''


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions" / "shop.py").write_text(FILE.lstrip())
    return tmp_path


@pytest.fixture
def own(project: Path) -> dict[str, UserFunction]:
    return user_functions(project)


def run(function: UserFunction, *columns: pa.Array) -> list[Any]:
    return function.arrow().compute(*columns).to_pylist()  # type: ignore[no-any-return]


def test_public_functions_with_hints_are_found(own: dict[str, UserFunction]) -> None:
    assert {"double_it", "join", "spread"} <= set(own)
    assert not {"helper", "_hidden", "point"} & set(own)
    assert own["double_it"].function.about == "Twice as much."
    assert own["join"].function.arity == (1, 3)
    assert {name for name, one in own.items() if one.function.kind == "aggregate"} == {"spread", "weighted", "longest"}


def test_single_values(own: dict[str, UserFunction]) -> None:
    assert run(own["double_it"], pa.array([1, None], pa.int32())) == [2, None]
    assert own["double_it"].arrow().returns == "bigint"
    assert run(own["join"], pa.array(["a", None]), pa.array([None, "b"])) == ["a-None", None]
    assert run(own["join"], pa.array(["a"]), pa.array(["b"]), pa.array(["+"])) == ["a+b"]
    moment = datetime(2024, 1, 2, tzinfo=UTC)
    columns = [1, Decimal("1.5"), "s", True, b"y", moment, date(2024, 1, 2), Decimal("2.5")]
    kinds = ["int", "float", "str", "bool", "bytes", "datetime", "date", "Decimal"]
    assert run(own["everything"], *(pa.array([one]) for one in columns)) == [kinds]


def test_structs_maps_and_lists(own: dict[str, UserFunction]) -> None:
    point = pa.array([{"x": 1.0, "y": None}, None], pa.struct([("x", pa.float64()), ("y", pa.int64())]))
    by = pa.array([[("x", 2)], [("x", 2)]], pa.map_(pa.string(), pa.int64()))
    assert run(own["shift"], point, by) == [{"x": 3.0, "y": None}, None]
    assert own["shift"].arrow().returns == "struct<`x`: double, `y`: bigint>"
    people = pa.array([[{"name": "Ada"}]])
    assert run(own["names"], people) == [[("ada", {"name": "Ada"})]]


def test_columns(own: dict[str, UserFunction]) -> None:
    assert run(own["halves"], pa.array([1, None])) == [0.5, None]
    assert run(own["as_series"], pa.array([1, 2])) == [2, 3]
    assert own["as_series"].arrow().returns == "bigint"


def test_aggregates_get_arrays(own: dict[str, UserFunction]) -> None:
    assert run(own["spread"], pa.array([[1.0, 4.0], None, [2.0]])) == [3.0, None, 0.0]
    assert run(own["weighted"], pa.array([[1, 2]]), pa.array([[10, 100]])) == [210.0]
    assert run(own["longest"], pa.array([["a", "bbb"], []], pa.list_(pa.string()))) == ["bbb", None]
    query = expand(parse("SELECT spread(v) AS s, Longest(DISTINCT t) AS l FROM x"), own)
    assert query.sql == "SELECT (spread(collect_list(v))) AS s, (longest(collect_set(t))) AS l FROM x"
    query = expand(parse("SELECT weighted(v, w) FILTER (WHERE v > 1) AS s FROM x"), own)
    assert "collect_list(named_struct('_0', v, '_1', w)) FILTER (WHERE v > 1)" in query.sql


def test_wrong_numbers_of_arguments_are_refused(own: dict[str, UserFunction]) -> None:
    with pytest.raises(SqlError, match="it takes 1 arguments, and there are 2"):
        expand(parse("SELECT double_it(1, 2) AS a FROM t"), own)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_result", "no hint for its result"),
        ("no_hint", "no hint for 'b'"),
        ("odd", "'set' is not a type of a column"),
        ("mixed", "cannot be mixed"),
        ("unsaid", "the type of its result is missing"),
    ],
)
def test_bad_hints_are_refused_with_file_and_line(own: dict[str, UserFunction], name: str, reason: str) -> None:
    with pytest.raises(ProjectError, match=reason) as found:
        own[name].arrow()
    assert found.value.code == "function-hints"
    assert found.value.where is not None
    assert found.value.where.file == "functions/shop.py"
    line = FILE.lstrip().splitlines()[(found.value.where.line or 0) - 1]
    assert line.startswith(f"def {name}(")


def test_what_a_function_gives_is_checked(own: dict[str, UserFunction]) -> None:
    with pytest.raises(ProjectError, match="function 'wrong' gave what is not int64"):
        run(own["wrong"], pa.array([1]))
    with pytest.raises(ProjectError, match="gave 0 values for 1 rows"):
        run(own["short"], pa.array([1]))
    with pytest.raises(ProjectError, match="argument 1 of function 'double_it' is string"):
        run(own["double_it"], pa.array(["x"]))


def test_files_and_names_are_checked(project: Path) -> None:
    extra = project / "functions" / "extra.py"
    for text, code in [
        ("def join(a: int) -> int: ...", "function-name-taken"),
        ("def distance(a: int) -> int: ...", "function-name-taken"),
        ("def f(:", "function-not-loadable"),
    ]:
        extra.write_text(text)
        with pytest.raises(ProjectError) as found:
            user_functions(project)
        assert found.value.code == code
    extra.write_text("\nimport no_such_package\ndef f(a: int) -> int: return a")
    with pytest.raises(ProjectError, match="no_such_package") as found:
        user_functions(project)["f"].arrow()
    assert found.value.code == "function-not-loadable"
    assert str(found.value.where) == "functions/extra.py:2"


def test_a_folder_without_functions_has_none(tmp_path: Path) -> None:
    assert user_functions(tmp_path) == {}


def test_what_the_library_computes_can_travel() -> None:
    from headrace.functions.library import library

    for one in library().values():
        if one.arrow is not None:
            pickle.dumps(one.arrow.compute)
