"""Databases that are polled: compared with what they hold, after every step."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pymysql
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.conftest import unavailable
from tests.tables.applied import Applied

import headrace.tables.polling.reader as polling_reader
import headrace.tables.polling.sqlite as polling_sqlite
from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError
from headrace.core.schema import from_ddl
from headrace.core.tables import TableShape
from headrace.tables.polling import PollingTable
from headrace.tables.polling.reader import PollingReader
from headrace.testing.services import MariaDB, Postgres

ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT, version INTEGER NOT NULL, gone BOOLEAN)"


@contextmanager
def made_in(folder: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(folder / "shop.db", isolation_level=None)) as made:
        made.execute("PRAGMA synchronous = OFF")
        made.execute("PRAGMA journal_mode = MEMORY")
        made.execute(ORDERS)
        yield made


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with made_in(tmp_path) as made:
        yield made


def polled(**options: Any) -> PollingTable:
    how = {"url": "sqlite:///shop.db", "table": "orders", "every": "1ms", **options}
    return PollingTable(**{name: value for name, value in how.items() if value is not None})


class Followed:
    """A table that is polled, and the model of what was told."""

    def __init__(self, context: Context, table: PollingTable, shape: TableShape | None = None) -> None:
        self._context, self.table = context, table
        self.applied = Applied(orders=shape or table.shape(context))
        self.reader = self._made()

    def _made(self) -> PollingReader:
        found = self.table.reader({"orders": self.table}, self.applied.shapes, self.applied.position, self._context)
        assert isinstance(found, PollingReader)
        return found

    def restart(self, table: PollingTable | None = None) -> None:
        self.reader.close()
        self.table = table or self.table
        self.reader = self._made()

    def poll(self) -> int:
        """Take one whole poll; how many steps it took."""
        for one in self.reader._tables:
            one.due = 0.0
        steps = 0
        while taken := self.reader.read(0.0):
            self.applied.take(taken)
            steps += 1
            for one in self.reader._tables:
                one.due = max(one.due, 1e18)
        return steps

    def rows(self) -> list[dict[str, Any]]:
        return self.applied.table("orders")


def held(database: sqlite3.Connection, where: str = "1") -> list[dict[str, Any]]:
    cursor = database.execute(f"SELECT * FROM orders WHERE {where} ORDER BY id")
    names = [column[0] for column in cursor.description]
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return [{**row, "gone": None if row["gone"] is None else bool(row["gone"])} for row in rows]


def test_columns_and_key_are_those_of_the_table(database: sqlite3.Connection, context: Context) -> None:
    assert polled().shape(context) == TableShape(
        from_ddl("id bigint, name string, version bigint, gone boolean"), ("id",)
    )
    database.execute(
        "CREATE TABLE kinds (b TEXT, a VARCHAR(20), r REAL, d DECIMAL(8,3), n NUMERIC, x BLOB, day DATE, at DATETIME, "
        "PRIMARY KEY (a, b)) WITHOUT ROWID"
    )
    assert polled(table="kinds").shape(context) == TableShape(
        from_ddl("b string, a string, r double, d decimal(8,3), n string, x binary, day date, at timestamp_ntz"),
        ("a", "b"),
    )
    declared = polled(
        query="SELECT id, name FROM orders WHERE name LIKE '%a'", table=None, columns="id int, name string"
    )
    assert declared.shape(context) == TableShape(from_ddl("id int, name string"))
    declared.check(context)


def test_all_rows_are_compared_without_a_cursor(
    database: sqlite3.Connection, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (polling_reader, polling_sqlite):
        monkeypatch.setattr(module, "PAGE", 2)
    database.executemany("INSERT INTO orders VALUES (?, ?, 0, 0)", [(n, f"n{n}") for n in range(5)])
    followed = Followed(context, polled())
    assert followed.poll() == 3
    assert followed.rows() == held(database)
    assert followed.poll() == 0, "nothing changed"
    database.execute("DELETE FROM orders WHERE id = 1")
    database.execute("UPDATE orders SET name = NULL WHERE id = 2")
    followed.poll()
    assert followed.rows() == held(database)
    followed.restart()
    database.execute("DELETE FROM orders")
    followed.poll()
    assert followed.rows() == []
    assert followed.applied.complete == {"orders"}


@pytest.mark.parametrize("lookback", [None, 3])
@settings(max_examples=25)
@given(data=st.data())
def test_a_cursor_finds_what_changes(lookback: int | None, data: st.DataObject, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("polled")
    context = Context(folder, str(folder / "state"))
    with made_in(folder) as database:
        followed = Followed(context, polled(cursor="version", lookback=lookback, deleted="gone"))
        version = 0
        for _ in range(data.draw(st.integers(1, 6))):
            changes = st.lists(
                st.tuples(st.integers(0, 5), st.sampled_from(["a", "b", None]), st.booleans()), max_size=6
            )
            for key, name, gone in data.draw(changes):
                version += data.draw(st.sampled_from([0, 1]))
                # with a look back, a transaction may come late
                at = version - (data.draw(st.integers(0, 3)) if lookback else 0)
                database.execute("INSERT OR REPLACE INTO orders VALUES (?, ?, ?, ?)", (key, name, at, gone))
            if data.draw(st.booleans()):
                followed.restart()
            followed.poll()
            assert followed.rows() == held(database, "NOT gone")
        steps = followed.poll()
        assert steps == 0, "what is found again is not told again"
        followed.reader.close()


def test_only_rows_from_the_cursor_on_are_asked_for(database: sqlite3.Connection, context: Context) -> None:
    database.executemany("INSERT INTO orders VALUES (?, 'a', ?, 0)", [(n, n) for n in range(10)])
    followed = Followed(context, polled(cursor="version"))
    followed.poll()
    assert followed.applied.position == {"orders": {"cursor": 9, "column": "version"}}
    database.execute("UPDATE orders SET name = 'unseen' WHERE id = 1")
    database.execute("INSERT INTO orders VALUES (10, 'b', 9, 0), (11, 'c', 12, 0)")
    followed.restart()
    followed.poll()
    assert [len(rows["orders"]) for taken in followed.applied.taken if (rows := taken.rows)] == [10, 3]
    assert [row["name"] for row in followed.rows()] == ["a"] * 10 + ["b", "c"]
    followed.restart(polled(cursor="id"))  # another cursor: all rows come again
    followed.poll()
    assert followed.rows()[1]["name"] == "unseen"
    database.execute("CREATE TABLE loose (id INTEGER PRIMARY KEY, at INTEGER)")
    database.execute("INSERT INTO loose VALUES (1, 1)")
    database.execute("UPDATE orders SET name = 'x' WHERE id = 11")
    followed.poll()
    database.execute("UPDATE orders SET name = 'c' WHERE id = 11")
    followed.poll()
    assert followed.rows()[11]["name"] == "c", "what it was before the last poll"
    loose = Followed(context, polled(table="loose", cursor="at"))
    loose.poll()
    database.execute("INSERT INTO loose VALUES (2, NULL)")
    with pytest.raises(ProjectError) as refused:
        loose.poll()
    assert refused.value.code == "polling-cursor-null"


def test_times_of_sqlite_are_looked_back_from(database: sqlite3.Connection, context: Context) -> None:
    database.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, at DATETIME NOT NULL)")
    database.execute("INSERT INTO events VALUES (1, '2026-01-01 10:00:00')")
    followed = Followed(context, polled(table="events", cursor="at", lookback="1min"))
    followed.poll()
    database.execute("INSERT INTO events VALUES (2, '2026-01-01 09:59:00'), (3, '2026-01-01 09:58:59')")
    followed.restart()
    followed.poll()
    assert [(row["id"], row["at"]) for row in followed.rows()] == [
        (1, datetime(2026, 1, 1, 10)),
        (2, datetime(2026, 1, 1, 9, 59)),
    ]


def test_a_first_reading_that_was_cut_off_begins_again(
    database: sqlite3.Connection, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (polling_reader, polling_sqlite):
        monkeypatch.setattr(module, "PAGE", 2)
    database.executemany("INSERT INTO orders VALUES (?, 'a', ?, 0)", [(n, n) for n in range(5)])
    followed = Followed(context, polled(cursor="version"))
    first = followed.reader.read(0.0)
    assert first is not None
    followed.applied.take(first)
    assert followed.applied.position == {"orders": {"first": True}}
    followed.restart()
    database.execute("DELETE FROM orders WHERE id = 0")
    followed.poll()
    assert followed.rows() == held(database)
    assert [sorted(taken.begins) for taken in followed.applied.taken if taken.begins] == [["orders"]] * 2


def test_columns_that_are_added_or_dropped(database: sqlite3.Connection, context: Context) -> None:
    database.execute("INSERT INTO orders VALUES (1, 'a', 1, 0)")
    followed = Followed(context, polled(cursor="version"))
    followed.poll()
    database.execute("ALTER TABLE orders ADD COLUMN paid BOOLEAN DEFAULT 1")
    database.execute("ALTER TABLE orders DROP COLUMN name")
    followed.restart()
    followed.poll()
    assert followed.rows() == [{"id": 1, "name": None, "version": 1, "gone": False, "paid": True}]


def test_two_tables_of_one_database_change_together(database: sqlite3.Connection, context: Context) -> None:
    database.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT)")
    database.execute("INSERT INTO customers VALUES (1, 'c')")
    database.execute("INSERT INTO orders VALUES (1, 'a', 1, 0)")
    tables = {"orders": polled(cursor="version"), "customers": polled(table="customers", every="1h")}
    assert tables["orders"].group == tables["customers"].group == "polling sqlite:///shop.db"
    applied = Applied(**{name: table.shape(context) for name, table in tables.items()})
    reader = PollingTable.reader(tables, applied.shapes, None, context)
    taken = reader.read(1.0)
    assert taken is not None
    assert taken.begins == taken.ends == {"orders", "customers"}
    database.execute("UPDATE customers SET name = 'd'")
    database.execute("UPDATE orders SET version = 2")
    later = reader.read(1.0)
    assert later is not None
    assert set(later.rows) == {"orders"}, "the other is not due"
    assert reader.read(0.01) is None
    assert reader.lag() is None
    reader.close()
    reader.close()


def test_what_is_wrong_has_a_code(database: sqlite3.Connection, context: Context) -> None:
    database.execute("INSERT INTO orders VALUES (1, 'a', 1, 'perhaps')")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"url": "sqlite:///none.db"}, "polling-missing"),
        ({"table": "order"}, "polling-missing"),
        ({"query": "SELEC 1", "table": None}, "polling-missing"),
        ({"query": "SELECT 1 AS x", "table": None}, "table-columns-unknown"),
        ({"columns": "id int, nam string"}, "unknown-column"),
        ({"cursor": "versio"}, "unknown-column"),
        ({"deleted": "delete"}, "unknown-column"),
        ({"cursor": "version", "lookback": "1min"}, "polling-lookback"),
        ({"cursor": "name", "lookback": 1}, "polling-lookback"),
        ({}, "table-value"),
    ]
    for options, code in cases:
        with pytest.raises(ProjectError) as refused:
            Followed(context, polled(**options)).poll()
        assert refused.value.code == code
    (context.root / "text.db").write_text("this is no database, it is a text" * 50)
    with pytest.raises(ProjectError) as refused:
        polled(url="sqlite:///text.db").check(context)
    assert refused.value.code == "table-refused"


def test_options_that_do_not_fit_are_refused() -> None:
    for bad, reason in (
        ({"url": "oracle://host/db"}, "not the address of a database"),
        ({"url": "postgresql:///db"}, "not the address of a database"),
        ({"query": "SELECT 1"}, "either `table` or `query`"),
        ({"table": None}, "either `table` or `query`"),
        ({"lookback": 3}, "needs a `cursor`"),
        ({"columns": "id numbers"}, "not a list of columns"),
        ({"every": "0s"}, "positive"),
    ):
        with pytest.raises(ValidationError, match=reason):
            polled(**bad)
    secret = polled(url="postgresql://me:hidden@db:5432/shop?sslmode=require", table="a.b")
    assert secret.group == "polling postgresql://db:5432/shop"
    assert "hidden" not in f"{secret!r} {secret.label} {secret.group}"
    other = polled(url="postgresql://you:hidden@db:5432/shop", table="c")
    with pytest.raises(ProjectError) as refused:
        PollingTable.reader({"a": secret, "c": other}, {}, None, Context(Path(), "state"))
    assert refused.value.code == "connections-differ"


# --- with real servers ---


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    problem = Postgres.problem()
    if problem is not None:
        unavailable(problem)
    with Postgres() as server:
        yield server


def churned(execute: Callable[[str], Any], chance: random.Random, steps: int) -> None:
    """Inserts, updates and marks rows; `at` is the time of the statement."""
    for _ in range(steps):
        key = chance.randrange(200)
        execute(f"DELETE FROM orders WHERE id = {key}")
        name, gone = f"n{chance.randrange(9)}", chance.random() < 0.2
        execute(f"INSERT INTO orders VALUES ({key}, '{name}', {gone}, clock_timestamp())")


@pytest.mark.service
def test_postgres(postgres: Postgres, context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    url = postgres.env["POSTGRES_URL"]
    chance = random.Random(3)
    with psycopg.connect(url, autocommit=True) as server:
        server.execute("CREATE SCHEMA shop")
        server.execute("SET search_path = shop")
        server.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, name text, gone bool, at timestamptz NOT NULL DEFAULT now())"
        )
        server.execute("INSERT INTO orders SELECT n, 'n', false FROM generate_series(0, 12000) n")
        options: dict[str, Any] = {"url": url, "table": "shop.orders"}
        whole = Followed(context, polled(**options))
        some = Followed(context, polled(**options, cursor="at", lookback="1s", deleted="gone"))
        assert some.applied.shapes["orders"] == TableShape(
            from_ddl("id bigint, name string, gone boolean, at timestamp"), ("id",)
        )
        assert some.poll() == 2, "pages of 10,000"
        for _ in range(2):
            with server.transaction():
                churned(server.execute, chance, 100)
            for followed, where in ((whole, "true"), (some, "NOT gone")):
                followed.restart()
                followed.poll()
                found = server.execute(f"SELECT id, name, gone, at FROM orders WHERE {where} ORDER BY id").fetchall()
                assert [tuple(row.values()) for row in followed.rows()] == found
        assert whole.poll() == some.poll() == 0
        whole.reader.close()
        some.reader.close()


@pytest.mark.service
def test_types_of_postgres(postgres: Postgres, context: Context) -> None:
    url = postgres.env["POSTGRES_URL"]
    query = """
      SELECT 1 AS id, 2::smallint AS i2, 1.5::real AS f4, 'NaN'::numeric AS nan, 1.25::numeric(10,2) AS n,
      3.5::numeric AS any_n, true AS b, '\\x00ff'::bytea AS y, date '2026-01-31' AS d, time '10:11:12' AS t,
      interval '1 day 2 hours' AS i,
      timestamp '2026-01-31 10:00' AS ts, timestamptz '2026-01-31 10:00+01' AS tz, '{"a": 1}'::jsonb AS j,
      'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid AS u, ARRAY[1, NULL] AS l, '50%' AS "per%cent", NULL::text AS empty
    """
    table = polled(url=url, query=query, table=None)
    shape = table.shape(context)
    assert shape.key == ()
    followed = Followed(context, table, TableShape(shape.columns, ("id",)))
    followed.poll()
    assert followed.rows() == [
        {
            "id": 1,
            "i2": 2,
            "f4": 1.5,
            "nan": None,
            "n": Decimal("1.25"),
            "any_n": Decimal("3.5"),
            "b": True,
            "y": b"\x00\xff",
            "d": date(2026, 1, 31),
            "t": "10:11:12",
            "i": "1 day 02:00:00",
            "ts": datetime(2026, 1, 31, 10),
            "tz": datetime(2026, 1, 31, 9, tzinfo=UTC),
            "j": '{"a": 1}',
            "u": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
            "l": [1, None],
            "per%cent": "50%",
            "empty": None,
        }
    ]
    assert shape.columns.field("any_n").type == pa.decimal128(38, 18)
    followed.reader.close()
    infinite = polled(url=url, query="SELECT 1 AS id, date 'infinity' AS d", table=None)
    for wrong, code in (
        (infinite, "table-value"),
        (polled(url=url, table="nowhere"), "polling-missing"),
        (polled(url=url, query="SELECT x", table=None), "polling-missing"),
        (polled(url=f"{url}-nowhere"), "postgres-missing"),
        (polled(url="postgresql://127.0.0.1:1/x"), "service-away"),
    ):
        with pytest.raises(ProjectError) as refused:
            Followed(context, wrong, TableShape(wrong.shape(context).columns, ("id",))).poll()
        assert refused.value.code == code
        assert (refused.value.exit_code is Exit.TRANSIENT) == (code == "service-away")


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDB]:
    problem = MariaDB.problem()
    if problem is not None:
        unavailable(problem)
    with MariaDB() as server:
        yield server


@pytest.mark.service
def test_mysql(mariadb: MariaDB, context: Context) -> None:
    url = f"mysql://root@{mariadb.address}/shop"
    connection = pymysql.connect(host="127.0.0.1", port=mariadb.port, user="root", autocommit=True, read_timeout=30)
    with closing(connection), connection.cursor() as server:
        for statement in (
            "CREATE DATABASE shop CHARACTER SET utf8mb4",
            "USE shop",
            "SET time_zone = '+00:00'",
            "CREATE TABLE `orders` (`id` INT UNSIGNED PRIMARY KEY, `per%cent` VARCHAR(20), gone TINYINT(1), "
            "price DECIMAL(10,2), at TIMESTAMP(6) NOT NULL, day DATE, clock TIME, local DATETIME(3))",
            "INSERT INTO orders SELECT seq, 'ä%', 0, 12.50, '2026-01-31 10:00:00', '2026-01-31', '-01:02:03', "
            "'2026-01-31 10:00:00.5' FROM seq_0_to_300",
        ):
            server.execute(statement)
        whole = Followed(context, polled(url=url))
        some = Followed(context, polled(url=url, cursor="at", lookback="1s", deleted="gone"))
        assert whole.applied.shapes["orders"] == TableShape(
            from_ddl(
                "id bigint, `per%cent` string, gone smallint, price decimal(12,2), at timestamp, day date, "
                "clock string, local timestamp_ntz"
            ),
            ("id",),
        )
        assert (whole.poll(), some.poll()) == (1, 1)
        assert whole.rows()[7] == {
            "id": 7,
            "per%cent": "ä%",
            "gone": 0,
            "price": Decimal("12.50"),
            "at": datetime(2026, 1, 31, 10, tzinfo=UTC),
            "day": date(2026, 1, 31),
            "clock": "-01:02:03",
            "local": datetime(2026, 1, 31, 10, 0, 0, 500_000),
        }
        server.execute("DELETE FROM orders WHERE id = 1")
        server.execute("UPDATE orders SET gone = 1, at = now(6) WHERE id IN (2, 3)")
        server.execute("UPDATE orders SET price = 1, at = now(6) WHERE id = 4")
        some.restart()
        whole.poll()
        some.poll()
        assert [row["id"] for row in whole.rows()[:5]] == [0, 2, 3, 4, 5]
        assert [(row["id"], row["price"]) for row in some.rows()[:4]] == [
            (0, Decimal("12.50")),
            (1, Decimal("12.50")),
            (4, Decimal(1)),
            (5, Decimal("12.50")),
        ]
        assert whole.poll() == some.poll() == 0
        server.execute("ALTER TABLE orders DROP COLUMN gone")
        with pytest.raises(ProjectError) as changed:
            whole.poll()
        assert changed.value.code == "polling-missing"
        whole.reader.close()
        some.reader.close()
    for wrong, code in (
        (polled(url=url, table="nowhere"), "polling-missing"),
        (polled(url=f"{url}x"), "polling-missing"),
        (polled(url=url, username="nobody", password="no"), "service-authentication"),
        (polled(url="mysql://127.0.0.1:1/x"), "service-away"),
    ):
        with pytest.raises(ProjectError) as refused:
            wrong.check(context)
        assert refused.value.code == code


def test_the_time_of_day_may_be_longer_than_a_day() -> None:
    assert polling_reader._clock(timedelta(hours=-101, microseconds=-5)) == "-101:00:00.000005"
