"""Tables in memory: changes as tests write them become weighted rows, and what is wrong with them is said."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from headrace.core.errors import ProjectError
from headrace.testing.viewtables import TestTable, rows_of

KEYED = {"key": ["id"], "columns": {"id": "bigint", "v": "string"}}


def keyed(*rows: tuple[Any, ...]) -> TestTable:
    table = TestTable("t", KEYED)
    table.change([("I", "t", row) for row in rows])
    return table


def test_a_change_is_about_the_row_that_has_its_key() -> None:
    table = keyed((1, "a"), (2, "b"))
    assert table.change([("I", "t", (1, "c"))]) == [(1, "a", -1), (1, "c", 1)], "replaces"
    assert table.change([("D", "t", {"id": 2})]) == [(2, "b", -1)], "the key says enough"
    assert table.change([("D", "t", (2, "b")), ("D", "t", (9, "x"))]) == [], "not there"
    assert table.change([("U", "t", (1, "?"), (3, "d"))]) == [(1, "c", -1), (3, "d", 1)], "another key"
    assert table.change([("U", "t", (8, "x"), (8, "y"))]) == [(8, "y", 1)], "was not there"
    assert table.change([("I", "t", (4, "e")), ("D", "t", (4, "e"))]) == [(4, "e", 1), (4, "e", -1)]
    assert +table.rows == {(3, "d"): 1, (8, "y"): 1}


def test_a_table_without_a_key_is_a_bag() -> None:
    table = TestTable("bag", {"columns": {"a": "int"}})
    assert table.change([("I", "bag", (1,)), ("I", "bag", (1,)), ("D", "bag", (1,))]) == [(1, 1), (1, 1), (1, -1)]
    with pytest.raises(ProjectError, match=r"table 'bag' has no row \(2,\)"):
        table.change([("D", "bag", (2,))])


def test_values_are_those_of_the_columns() -> None:
    columns = {"d": "decimal(6,2)", "at": "timestamp", "p": "struct<x: int, y: array<string>>", "f": "double"}
    table = TestTable("t", {"columns": columns})
    noon = datetime(2026, 3, 1, 12)  # without a zone it is UTC
    table.change([("I", "t", {"d": Decimal(1), "at": noon, "p": {"y": ["a"], "x": 1}, "f": 2})])
    (row,) = table.rows
    assert row == (Decimal("1.00"), noon.replace(tzinfo=UTC), (1, ("a",)), 2.0)
    assert str(row[0]) == "1.00"
    assert table.change([("D", "t", row)]) == [(*row, -1)], "as it is given back, it can be given again"
    assert rows_of(table.arrow([row], table.shape.columns)) == [row]


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (("I", "t", (1,)), "table-row", "(1,) is not a row of table 't', which has the columns id, v"),
        (("I", "t", "ab"), "table-row", "'ab' is not a row of table 't', which has the columns id, v"),
        (("I", "t", {"id": 1, "w": "a"}), "unknown-column", "table 't' has no column 'w'"),
        (("I", "t", ("one", "a")), "table-value", "column 'id' of table 't' is bigint: "),
        (("I", "t", (1, 2)), "table-value", "column 'v' of table 't' is string: "),
        (("I", "t", (None, "a")), "table-value", "table 't' has the key (id), which is null in (None, 'a')"),
        (("U", "t", (1, "a")), "table-row", "('U', 't', (1, 'a')) is not a change"),
        (("X", "t", (1, "a")), "table-row", "('X', 't', (1, 'a')) is not a change"),
    ],
)
def test_what_is_wrong_with_a_change(change: tuple[Any, ...], code: str, message: str) -> None:
    with pytest.raises(ProjectError) as refused:
        keyed((1, "a")).change([change])
    assert refused.value.code == code
    assert refused.value.message.startswith(message)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"key": ["id"]}, "table 't' needs columns, and optionally a key"),
        ({"columns": "id bigint"}, "table 't' needs columns, and optionally a key"),
        ({"columns": {"id": "bigint"}, "keys": ["id"]}, "table 't' needs columns, and optionally a key"),
        ({"columns": {"id": "bigint"}, "key": ["di"]}, "key: table 't' has no column 'di'"),
        ({"columns": {"id": "bigtin"}}, "not a list of columns"),
    ],
)
def test_what_is_wrong_with_a_table(about: dict[str, Any], message: str) -> None:
    with pytest.raises(ProjectError) as refused:
        TestTable("t", about)
    assert refused.value.message.startswith(message)
    assert refused.value.hint
