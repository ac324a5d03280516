from __future__ import annotations

import pyarrow as pa
import pytest
import sqlglot

from headrace.core.filters import ColumnFilter, apply_all

NAN = float("nan")
ROWS = pa.RecordBatch.from_pydict(
    {
        "s": ["a", "b", "", None, "a"],
        "i": pa.array([1, 2, None, -3, 0], pa.int32()),
        "l": pa.array([1, 2**40, None, -3, 0], pa.int64()),
        "d": [1.0, NAN, None, -0.0, 2.5],
        "f": pa.array([1.0, 2.0, None, 0.0, 2.5], pa.float32()),
    }
)


def parsed(condition: str) -> ColumnFilter | None:
    tree = sqlglot.parse_one(condition, dialect="spark")
    column = tree.find(sqlglot.exp.Column)
    assert column is not None
    return ColumnFilter.from_sql(tree, ROWS.schema.field(column.name))


@pytest.mark.parametrize(
    ("condition", "passing"),
    [
        ("s = 'a'", [0, 4]),
        ("s <> 'a'", [1, 2]),
        ("s in ('a', '')", [0, 2, 4]),
        ("s is not null", [0, 1, 2, 4]),
        ("not s is null", [0, 1, 2, 4]),
        ("i > 0", [0, 1]),
        ("0 < i", [0, 1]),
        ("i >= -3", [0, 1, 3, 4]),
        ("i in (1, -3)", [0, 3]),
        ("l = 1099511627776", [1]),
        ("d > 1", [1, 4]),
        ("d >= 2.5", [1, 4]),
        ("d < 1", [3]),
        ("d <> 1", [1, 3, 4]),
        ("d = 0", [3]),
        ("d <= 0.0", [3]),
        ("d is not null", [0, 1, 3, 4]),
    ],
)
def test_a_filter_passes_what_spark_passes(condition: str, passing: list[int]) -> None:
    """NaN is larger than any number and -0.0 is 0.0; null is never true."""
    made = parsed(condition)
    assert made is not None
    assert [i for i, passed in enumerate(made.mask(ROWS).to_pylist()) if passed] == passing


@pytest.mark.parametrize(
    "condition",
    [
        "s < 'a'",  # collation
        "s = 5",
        "i = '5'",
        "i = 1.5",
        "i = 3000000000",
        "s = 'it\\'s'",
        "s in ('a', null)",
        "s not in ('a')",
        "s <=> 'a'",
        "s is null",
        "s like 'a%'",
        "d in (0.0, 1.0)",
        "f = 1.0",
        "i = i",
        "i + 1 = 2",
        "upper(s) = 'A'",
        "cast(i as string) = '1'",
        "i = 1L",
        "s = null",
        "i between 1 and 2",
    ],
)
def test_what_means_something_else_to_spark_makes_no_filter(condition: str) -> None:
    assert parsed(condition) is None


def test_all_filters_must_pass() -> None:
    both = apply_all([ColumnFilter("s", "=", ("a",)), ColumnFilter("i", ">", (0,))], ROWS)
    assert both is not None
    assert both.to_pylist() == [True, False, False, False, False]
    assert apply_all([], ROWS) is None


def test_filters_read_like_sql() -> None:
    made = [ColumnFilter("s", "in", ("a", "b")), ColumnFilter("i", ">", (0,)), ColumnFilter("s", "is not null")]
    assert [str(one) for one in made] == ["s in ('a', 'b')", "i > 0", "s is not null"]
