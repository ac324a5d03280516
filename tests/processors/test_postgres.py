from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from tests.processors.conftest import StepDesk

from headrace.core.errors import ProjectError
from headrace.processors.postgres import PostgresEnricher as Step
from headrace.testing.services import Postgres

pytestmark = pytest.mark.service

COLUMNS = {
    "tier": "tier",
    "since": {"path": "since", "type": "timestamp"},
    "paid": {"path": "paid", "type": "decimal(10,2)"},
    "tags": {"path": "tags", "type": "array<string>"},
    "more": "more",
}
TABLE = """
DROP TABLE IF EXISTS customers;
CREATE TABLE customers (id bigint, tier text, since timestamptz, paid numeric, tags text[], more jsonb);
INSERT INTO customers VALUES
  (1, 'gold', '2026-01-31T12:00:00Z', 12.5, '{a,b}', '{"x": 1}'), (2, 'tin', NULL, NULL, NULL, NULL),
  (3, 'twice', NULL, NULL, NULL, NULL), (3, 'twice', NULL, NULL, NULL, NULL);
"""


@pytest.fixture
def database(postgres: Postgres) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.env["POSTGRES_URL"], autocommit=True) as connection:
        connection.execute(TABLE)
        yield connection


def step(postgres: Postgres, **options: Any) -> Step:
    given = {
        "url": postgres.env["POSTGRES_URL"],
        "query": "SELECT * FROM customers WHERE id = :id",
        "columns": COLUMNS,
        "backoff": "1ms",
        **options,
    }
    return Step.model_validate(given)


def test_rows_of_a_table(postgres: Postgres, database: Any, desk: StepDesk) -> None:
    rows = desk.run(step(postgres), {"id": [2, 1, None, 9, 1]})
    assert [row["tier"] for row in rows] == ["tin", "gold", None, None, "gold"]
    gold = rows[1]
    assert gold["since"] == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert (gold["paid"], gold["tags"], gold["more"]) == (Decimal("12.50"), ["a", "b"], '{"x":1}')
    assert (desk.counts["calls"], desk.counts["successes"], desk.counts["failures_404"]) == (1, 2, 1)
    step(postgres).check(desk.context)


def test_one_question_too_many_does_not_harm_the_others(postgres: Postgres, database: Any, desk: StepDesk) -> None:
    rows = desk.run(step(postgres), {"id": [1, 3, 2]})
    assert [row["tier"] for row in rows] == ["gold", "tin"]
    assert desk.reasons == ["several-rows"]
    divided = step(postgres, query="SELECT (10 / :id)::text AS tier", columns={"tier": "tier"})
    assert [row["tier"] for row in desk.run(divided, {"id": [5, 0, 2]})] == ["2", "5"]
    assert desk.reasons[1:] == ["sql-22012"]


def test_values_are_bound_and_nothing_is_written(postgres: Postgres, database: Any, desk: StepDesk) -> None:
    odd = "x'; DROP TABLE customers; --"
    echoing = step(postgres, query="SELECT :id::text AS tier", columns={"tier": "tier"})
    assert [row["tier"] for row in desk.run(echoing, {"id": [odd, "a\0b", "ü"]})] == [odd, "ü"]
    assert desk.reasons == ["bad-value"]
    database.execute("CREATE OR REPLACE FUNCTION spend() RETURNS int LANGUAGE sql AS "
                     "$$ INSERT INTO customers VALUES (7) RETURNING 1 $$")  # fmt: skip
    writing = step(postgres, query="SELECT spend()::text AS tier FROM customers WHERE id = :id", columns={"a": "tier"})
    assert desk.run(writing, {"id": [1]}) == []
    assert desk.reasons[1:] == ["sql-25006"]
    assert database.execute("SELECT count(*) FROM customers").fetchone() == (4,)


def test_a_query_that_takes_too_long(postgres: Postgres, database: Any, desk: StepDesk) -> None:
    slow = step(
        postgres,
        query="SELECT pg_sleep(CASE WHEN :id = 2 THEN 60 ELSE 0 END)::text AS tier",
        columns={"tier": "tier"},
        timeout="2s",  # the others have to be answered in this time, however busy the machine is
        retries=0,
    )
    assert len(desk.run(slow, {"id": [1, 2, 4]})) == 2
    assert desk.reasons == ["timeout"]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"query": "SELECT tier FROM customer WHERE id = :id"}, "service-refused"),
        ({"columns": {"a": "teir"}}, "service-refused"),
        ({"username": "nobody"}, "service-authentication"),
        ({"url": "postgresql://127.0.0.1:1/postgres"}, "service-away"),
    ],
)
def test_what_is_wrong_is_said_before_the_start(
    postgres: Postgres, database: Any, desk: StepDesk, options: dict[str, Any], code: str
) -> None:
    with pytest.raises(ProjectError) as caught:
        step(postgres, **options).check(desk.context)
    assert caught.value.code == code


def test_a_connection_that_breaks_is_made_again(postgres: Postgres, database: Any, desk: StepDesk) -> None:
    asking = step(postgres)
    assert len(desk.run(asking, {"id": [1]})) == 1
    database.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    assert [row["tier"] for row in desk.run(asking, {"id": [1, 2]})] == ["gold", "tin"]
    assert desk.kept.letters == []


def test_times_and_nested_values_are_parameters_too(postgres: Postgres, database: Any, desk: StepDesk) -> None:
    asking = step(
        postgres,
        query="SELECT (:at::timestamptz + interval '1 hour')::text AS tier, (:list::jsonb ->> 1) AS more",
        columns={"tier": "tier", "more": "more"},
    )
    batch = pa.RecordBatch.from_pydict(
        {"at": pa.array([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")), "list": [[1, 2]]}
    )
    [row] = desk.run(asking, batch)
    assert row["more"] == "2"
    assert datetime.fromisoformat(row["tier"]) == datetime(2026, 1, 1, 1, tzinfo=UTC)
