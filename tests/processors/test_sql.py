from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pydantic import ValidationError

from headrace.core.errors import ProjectError
from headrace.core.processor import StepContext
from headrace.core.python_stage import PythonStage
from headrace.processors.sql import SqlStep, _picked
from headrace.sql.query import parse

GIVEN = pa.schema([("amount", pa.int64()), ("rate", pa.float64()), ("at", pa.timestamp("us", "UTC"))])


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT *, amount * rate AS euros FROM rows", ["amount", "rate", "at", "euros"]),
        ("SELECT * EXCEPT (rate) FROM rows", ["amount", "at"]),
        ("SELECT amount AS cents, at FROM Rows WHERE amount > 0", ["cents", "at"]),
    ],
)
def test_columns(sql: str, names: list[str]) -> None:
    assert SqlStep(sql=sql).output(GIVEN).names == names


def test_types_of_what_is_handed_through_and_what_is_read() -> None:
    made = SqlStep(sql="SELECT at, amount + 1 AS more FROM rows").output(GIVEN)
    assert [str(field.type) for field in made] == ["timestamp[us, tz=UTC]", "null"]
    assert SqlStep(sql="SELECT at FROM rows WHERE amount > 0").uses(frozenset({"at"})) >= {"at", "amount"}  # type: ignore[operator]
    assert SqlStep(sql="SELECT * FROM rows").uses(frozenset({"at"})) is None


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SELECT count(*) AS n FROM rows", "sql-not-streamable"),
        ("SELECT DISTINCT amount FROM rows", "sql-not-streamable"),
        ("SELECT amount FROM rows ORDER BY amount", "sql-not-streamable"),
        ("SELECT ammount FROM rows", "unknown-column"),
    ],
)
def test_what_a_step_cannot_do(sql: str, code: str) -> None:
    with pytest.raises(ProjectError) as caught:
        SqlStep(sql=sql).output(GIVEN)
    assert caught.value.code == code


@pytest.mark.parametrize("sql", ["SELECT 1 FROM orders", "SELECT", "DELETE FROM rows", "SELECT 1"])
def test_only_a_query_over_the_rows(sql: str) -> None:
    with pytest.raises(ValidationError):
        SqlStep(sql=sql)


@pytest.mark.parametrize(
    ("sql", "picked"),
    [
        ("SELECT at, amount FROM rows", ["at", "amount"]),
        ("SELECT r.at FROM rows r", None),
        ("SELECT AT FROM rows", None),
        ("SELECT at AS time FROM rows", None),
        ("SELECT at, at FROM rows", None),
        ("SELECT * FROM rows", None),
        ("SELECT at FROM rows WHERE amount > 0", None),
        ("SELECT at FROM rows LIMIT 1", None),
        ("SELECT at FROM rows TABLESAMPLE (10 PERCENT)", None),
        ("SELECT at FROM rows UNION ALL SELECT at FROM rows", None),
        ("WITH x AS (SELECT at FROM rows) SELECT at FROM x", None),
    ],
)
def test_a_query_that_only_picks_columns_is_known(sql: str, picked: list[str] | None) -> None:
    assert _picked(parse(sql), GIVEN) == picked


def test_picking_columns_stays_in_arrow() -> None:
    frame: Any = None
    before = PythonStage(frame, GIVEN, (lambda batches: batches,))
    rows = SqlStep(sql="SELECT at, amount FROM rows").extend(before, cast(StepContext, SimpleNamespace(letters=None)))
    assert rows.schema.names == ["at", "amount"]
    batch = pa.RecordBatch.from_pydict({"amount": [1], "rate": [0.5], "at": [0]})
    (made,) = rows.chain[-1](iter([batch]))
    assert made.to_pydict() == {"at": [0], "amount": [1]}
