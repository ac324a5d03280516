from __future__ import annotations

import pyarrow as pa
import pytest
from tests.sql.cases import QUERIES, SCHEMAS

from headrace.core.schema import from_ddl
from headrace.sql.columns import unknown_columns
from headrace.sql.query import SqlError, parse

WITH_METADATA = {**SCHEMAS, "orders": pa.schema([*SCHEMAS["orders"], *from_ddl("_key binary, _offset bigint")])}


def errors(sql: str) -> list[SqlError]:
    query = parse(sql)
    return unknown_columns(query, {name: WITH_METADATA[name] for name in {t.lower() for t in query.tables}})


@pytest.mark.parametrize("case", QUERIES)
def test_a_correct_query_is_never_accused(case: str) -> None:
    assert errors(QUERIES[case]) == []


@pytest.mark.parametrize(
    ("sql", "name", "guess", "line"),
    [
        ("SELECT id,\n  ammount\nFROM orders", "ammount", "amount", 2),
        ("SELECT o.id,\n  o.ammount\nFROM orders o", "ammount", "amount", 2),
        ("SELECT id FROM orders\nWHERE\n  statos = 'new'", "statos", "status", 3),
        ("SELECT status, count(*) AS n\nFROM orders\nGROUP BY status, qtty", "qtty", "qty", 3),
        ("SELECT window(tss, '1 minute') AS w FROM orders", "tss", "ts", 1),
        ("SELECT drivr.name FROM orders", "drivr", "driver", 1),
        ("SELECT o.id FROM orders o JOIN bookings b ON o.id = b.idd", "idd", "id", 1),
        ("SELECT o.id, b.status FROM orders o JOIN bookings b ON o.id = b.id", "status", None, 1),
        ("WITH c AS (SELECT idd FROM orders) SELECT id FROM c", "idd", "id", 1),
        ("SELECT `statuss` FROM orders", "statuss", "status", 1),
    ],
)
def test_a_typo_is_found_with_its_line_and_the_nearest_name(sql: str, name: str, guess: str | None, line: int) -> None:
    (error,) = errors(sql)
    assert (error.code, error.line) == ("unknown-column", line)
    assert f"'{name}'" in error.message
    assert (f"did you mean '{guess}'?" in str(error.hint)) == (guess is not None)


def test_the_hint_lists_the_columns_but_not_the_metadata() -> None:
    (error,) = errors("SELECT identity FROM orders")
    assert "columns of 'orders': Mixed, amount, driver" in str(error.hint)
    assert "_offset" not in str(error.hint)


def test_metadata_columns_may_be_used() -> None:
    assert errors("SELECT _offset, cast(o._key AS string) AS k FROM orders o") == []


def test_all_typos_are_listed_in_order() -> None:
    assert [e.line for e in errors("SELECT idd,\n statuss\nFROM orders\nWHERE qtyy > 1")] == [1, 2, 4]
