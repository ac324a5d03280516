"""Questions answered in this process: what is asked, what may be seen, what it looks like."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.serve.sql.shop import NONE, ORDERS, put, shop

from headrace.client.frames import Answer
from headrace.core.errors import RequestError
from headrace.project.serving import Access
from headrace.serve.access.access import AccessControl
from headrace.serve.access.grants import Grant
from headrace.serve.access.stores import Stores
from headrace.serve.sql.answer import execute
from headrace.serve.sql.tables import Tables

ALL = Grant("all", frozenset({"sql"}))
EUROPE = Grant("eu", frozenset({"sql"}), {"orders": Access(fields=["id", "amount"], filter={"region": "EU"})})
Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return shop(tmp_path_factory.mktemp("shop"), rows=20)


@pytest.fixture(scope="module")
def ask(settings: Any) -> Iterator[Ask]:
    """Asks, as someone who may see everything unless said otherwise."""
    stores = Stores(settings)

    def asked(text: str, parameters: Any = None, grant: Grant = ALL) -> dict[str, Any]:
        tables = Tables(AccessControl(stores, settings.spec.limits, bytes), grant, settings.lakes)
        found: dict[str, Any] = json.loads(execute(text, parameters, tables, settings.spec.limits.sql))
        return found

    yield asked
    stores.close()


def refused(ask: Ask, text: str, **more: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        ask(text, **more)
    return caught.value


def test_endpoints_and_lake_tables_are_asked_together(ask: Ask) -> None:
    found = ask(
        "SELECT r.name, count(*) AS visits, sum(DISTINCT o.amount) AS amount "
        "FROM orders o JOIN regions r USING (region) JOIN visits v ON v.order_id = o.id "
        "WHERE o.id < ? GROUP BY ALL ORDER BY 1",
        [6],
    )
    assert found == {
        "columns": [
            {"name": "name", "type": "string"},
            {"name": "visits", "type": "bigint"},
            {"name": "amount", "type": "decimal(38,2)"},
        ],
        "rows": [["America", 167, "5.20"], ["Europe", 84, "3.10"]],
        "truncated": False,
    }


def test_values_look_as_endpoints_give_them(ask: Ask, settings: Any) -> None:
    stores = Stores(settings)
    with stores.transaction("orders") as view:
        rows = [json.loads(row.json) for row in view.scan()]
    stores.close()
    found = ask("SELECT * FROM orders ORDER BY id")
    assert [column["name"] for column in found["columns"]] == ORDERS.columns.names
    assert [dict(zip(ORDERS.columns.names, row, strict=True)) for row in found["rows"]] == rows
    types = {column["name"]: column["type"] for column in found["columns"]}
    assert Answer(types, found["rows"], False).to_arrow().schema.types == ORDERS.columns.types


def test_values_that_endpoints_do_not_have(ask: Ask) -> None:
    found = ask(
        "SELECT sum(id) AS a, 2::hugeint ** 100 AS b, time '10:00:01' AS c, interval '1 day' AS d, "
        "'x'::enum('x', 'y') AS e, 1.5 AS e, 'inf'::double AS f, NULL AS g, "
        "uuid '00000000-0000-0000-0000-000000000001', "
        "{'k': [time '01:00']} AS h, 18446744073709551615::ubigint AS i FROM orders"
    )
    assert [column["name"] for column in found["columns"]][:6] == ["a", "b", "c", "d", "e", "e_2"]
    types = [column["type"] for column in found["columns"]]
    assert types[:6] == ["decimal(38,0)", "double", "string", "string", "string", "decimal(2,1)"]
    (row,) = found["rows"]
    assert row[:4] == [78, 2.0**100, "10:00:01", "0 months 1 days 0 seconds"]
    assert row[4:] == ["x", "1.5", "Infinity", None, "00000000-0000-0000-0000-000000000001",
                       "{'k': [datetime.time(1, 0)]}", 18446744073709551615]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "parameters", "rows"),
    [
        ("SELECT ?::bigint + ?", [1, 2], [[3]]),
        ("SELECT $2 || $1", ["a", "b"], [["ba"]]),
        ("SELECT $who", {"who": "Ada'; DROP TABLE orders"}, [["Ada'; DROP TABLE orders"]]),
        ('SELECT count(*) FROM orders WHERE "at" >= ?::timestamptz', ["2026-01-01T00:00:10Z"], [[3]]),
        ("SELECT id FROM orders WHERE region = $1 AND day = $2::date", ["EU", "2026-01-04"], [[3]]),
        ("SELECT ?", [None], [[None]]),
    ],
)
def test_parameters(ask: Ask, text: str, parameters: Any, rows: list[Any]) -> None:
    assert ask(text, parameters)["rows"] == rows


@pytest.mark.parametrize(("text", "parameters"), [("SELECT ?", None), ("SELECT ?, ?", [1]), ("SELECT $a", {"b": 1})])
def test_parameters_that_do_not_fit(ask: Ask, text: str, parameters: Any) -> None:
    assert refused(ask, text, parameters=parameters).code == "bad-sql"


def test_more_rows_than_an_answer_may_have(ask: Ask) -> None:
    found = ask("SELECT i FROM range(1000000000) t(i)")
    assert (len(found["rows"]), found["truncated"]) == (20, True)
    assert ask("SELECT i FROM range(20) t(i)")["truncated"] is False


def test_descriptions(ask: Ask) -> None:
    assert ask("SHOW TABLES")["rows"] == [["orders"], ["regions"], ["lake.orders"], ["lake.visits"]]
    assert [row[:2] for row in ask("DESCRIBE regions")["rows"]] == [["region", "VARCHAR"], ["name", "VARCHAR"]]
    assert len(ask("SUMMARIZE regions")["rows"]) == 2
    assert "SCAN" in ask("EXPLAIN SELECT * FROM orders")["rows"][0][1].upper()
    assert ask("EXPLAIN ANALYZE SELECT count(*) FROM orders")["rows"]


def test_versions_are_tables(ask: Ask) -> None:
    assert ask('SELECT count(*) FROM "orders@v1"')["rows"] == [[12]]
    missing = refused(ask, 'SELECT count(*) FROM "orders@v7"')
    assert (missing.code, missing.status) == ("unknown-endpoint", 404)


def test_a_restricted_token_sees_its_rows_and_columns_only(ask: Ask) -> None:
    assert ask("SELECT * FROM orders", grant=EUROPE)["rows"] == [[3, "3.10"], [6, "6.10"], [9, "9.10"], [12, "12.10"]]
    assert ask("SELECT count(*), max(amount) FROM orders", grant=EUROPE)["rows"] == [[4, "12.10"]]
    assert ask("SHOW TABLES", grant=EUROPE)["rows"] == [["orders"]]
    assert [row[0] for row in ask("DESCRIBE orders", grant=EUROPE)["rows"]] == ["id", "amount"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("SELECT region FROM orders", "bad-sql"),
        ("SELECT id FROM orders WHERE region = 'US'", "bad-sql"),
        ("SELECT id FROM orders ORDER BY region", "bad-sql"),
        ("SELECT orders.buyer.name FROM orders", "bad-sql"),
        ("SELECT * FROM regions", "unknown-table"),
        ("SELECT * FROM lake.visits", "unknown-table"),
        ("SELECT * FROM visits", "unknown-table"),
        ("WITH regions AS (SELECT 1) SELECT * FROM (SELECT 2), main.regions", "unknown-table"),
    ],
)
def test_what_a_token_may_not_see_is_not_there(ask: Ask, text: str, code: str) -> None:
    error = refused(ask, text, grant=EUROPE)
    assert error.code == code
    for hidden in ("EU", "Europe", "b3", "lake.visits" if code == "bad-sql" else "Europe"):
        assert hidden not in error.message


def test_a_token_without_the_scope(ask: Ask) -> None:
    assert refused(ask, "SELECT * FROM orders", grant=Grant("r", frozenset({"read"}))).code == "wrong-scope"


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM nowhere",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM 'https://example.org/x.parquet'",
        'SELECT * FROM "/etc/passwd"',
        "SELECT * FROM information_schema.tables",
        "SELECT * FROM pg_catalog.pg_tables",
        "SELECT * FROM duckdb_tables",
        "SELECT * FROM sqlite_master",
        "SELECT * FROM _rows",
        "SELECT * FROM system.main.duckdb_settings",
        # a name that a part of the question has made up does not stand for another elsewhere
        "SELECT * FROM (WITH pg_settings AS (SELECT 1) FROM pg_settings), pg_settings",
        "SELECT * FROM orderz",
    ],
)
def test_there_are_no_other_tables(ask: Ask, text: str) -> None:
    error = refused(ask, text)
    assert error.code == "unknown-table"
    assert "orders" in (error.hint or "")


@pytest.mark.parametrize("text", ["SELECT nope FROM orders", "SELECT id::int / 'x' FROM orders", "SELECT error('x')"])
def test_mistakes_are_told_in_the_words_of_the_database(ask: Ask, text: str) -> None:
    error = refused(ask, text)
    assert (error.code, error.status) == ("bad-sql", 400)
    assert "Error" in error.message


def test_a_lake_table_that_is_not_there_yet(ask: Ask, settings: Any) -> None:
    error = refused(ask, "SELECT * FROM lake.orders")
    assert (error.code, error.status) == ("lake-unreadable", 503)
    assert str(settings.root) not in error.message


def test_an_endpoint_with_no_rows(tmp_path: Path) -> None:
    settings = shop(tmp_path)
    put(settings.store, NONE, [])
    stores = Stores(settings)
    tables = Tables(AccessControl(stores, settings.spec.limits, bytes), ALL, {})
    found = json.loads(execute("SELECT count(*), sum(a) FROM none", None, tables, settings.spec.limits.sql))
    stores.close()
    assert found["rows"] == [[0, None]]
