from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.conftest import unavailable
from tests.tables.conftest import Copy

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.positions import Position
from headrace.core.tables import TableReader, TableShape, Taken
from headrace.tables.postgres import PostgresTable
from headrace.testing.services import Postgres

HERE = Context(Path("/project"), "state")
SOON = 20.0


def source(url: str = "postgresql://127.0.0.1:1/shop", table: str = "orders", **options: Any) -> PostgresTable:
    return PostgresTable.model_validate({"type": "postgres", "url": url, "table": table} | options)


def code_of(call: Callable[[], Any]) -> str:
    with pytest.raises(ProjectError) as caught:
        call()
    return caught.value.code


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    problem = Postgres.problem()
    if problem is not None:
        unavailable(problem)
    with Postgres() as server:
        yield server


@dataclass
class Database:
    """A database of the test's own, and what a project keeps of its tables."""

    url: str
    connection: psycopg.Connection[Any]
    slot: str
    copy: Copy = field(default_factory=Copy)
    position: Position | None = None
    reader: TableReader | None = None
    taken: list[Taken] = field(default_factory=list)

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(query).fetchall()

    def table(self, table: str, **options: Any) -> PostgresTable:
        return source(self.url, table, slot=self.slot, **options)

    def open(self, keys: Mapping[str, tuple[str, ...]] | None = None, **tables: PostgresTable) -> None:
        """A new reader, as after a restart."""
        self.close()
        shapes = dict(self.copy.shapes)
        for name, key in (keys or {}).items():
            shapes.setdefault(name, TableShape(tables[name].shape(HERE).columns, key))
        self.reader = PostgresTable.reader(tables, shapes, self.position, HERE)

    def step(self, seconds: float = 1.0) -> Taken | None:
        """What a capture does."""
        assert self.reader is not None
        taken = self.reader.read(seconds)
        if taken is not None:
            self.copy.take(taken)
            self.taken.append(taken)
            self.position = taken.position
            self.reader.confirm(taken.position)
        return taken

    def until(self, done: Callable[[], bool]) -> None:
        limit = time.monotonic() + SOON
        while not done():
            assert time.monotonic() < limit, "it did not come to that"
            self.step(0.05)

    def catch_up(self) -> None:
        """Until all that is committed now has been taken."""
        self.run("CREATE TABLE IF NOT EXISTS headrace_mark (id uuid PRIMARY KEY)")
        self.until(lambda: self.reader is not None and self.reader.lag() is not None and self._at_end())

    def _at_end(self) -> bool:
        ((end,),) = self.rows("SELECT pg_current_wal_lsn()::text")
        return self.step(0.1) is None and self._reached() >= _number(end)

    def _reached(self) -> int:
        told = getattr(self.reader, "_transactions", None)
        return told.reached if told is not None and told.final is None else 0

    def whole(self, *names: str) -> bool:
        return self.position is not None and set(names) <= set(self.position["tables"])

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
            self.reader = None


def _number(lsn: str) -> int:
    high, _, low = lsn.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


@pytest.fixture
def db(postgres: Postgres) -> Iterator[Database]:
    name = f"test_{uuid.uuid4().hex[:10]}"
    base = postgres.env["POSTGRES_URL"]
    with psycopg.connect(base, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    url = base.rpartition("/")[0] + "/" + name
    with psycopg.connect(url, autocommit=True) as connection:
        made = Database(url, connection, slot=name)
        yield made
        made.close()
    with psycopg.connect(base, autocommit=True) as admin:
        for (slot,) in admin.execute(
            "SELECT slot_name FROM pg_replication_slots WHERE database = %s AND NOT active", (name,)
        ).fetchall():
            admin.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.mark.service
def test_first(db: Database) -> None:
    db.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 1000) g",
    )
    db.open(t=db.table("t"))
    db.until(lambda: db.whole("t"))
    db.run("INSERT INTO t VALUES (5000, 'x')", "UPDATE t SET v = 'y' WHERE id = 5", "DELETE FROM t WHERE id = 6")
    db.catch_up()
    assert [tuple(r.values()) for r in db.copy.dicts("t")] == db.rows("SELECT * FROM t ORDER BY id")
    print(db.position)
