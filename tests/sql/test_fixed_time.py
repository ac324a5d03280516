"""A query at a moment does not ask for the time."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from headrace.sql.fixed_time import with_fixed_time

MOMENT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELECT now() AS t", "CAST('2026-03-01 12:30:00.000000Z' AS TIMESTAMP)"),
        ("SELECT a FROM b WHERE t > CURRENT_TIMESTAMP - INTERVAL 24 HOURS", "'2026-03-01 12:30:00.000000Z'"),
        ("SELECT current_date() AS d", "CAST('2026-03-01' AS DATE)"),
    ],
)
def test_now_is_that_moment(sql: str, told: str) -> None:
    made = with_fixed_time(sql, MOMENT)
    assert told in made
    assert "CURRENT_" not in made
    assert "NOW(" not in made.upper()


def test_other_queries_stay_as_they_are_written() -> None:
    sql = "SELECT  a -- as it is\nFROM b"
    assert with_fixed_time(sql, MOMENT) == sql
