from __future__ import annotations

import pyarrow as pa
import pytest
from pydantic import ValidationError

from headrace.core.errors import ProjectError
from headrace.processors.sql import SqlStep

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
