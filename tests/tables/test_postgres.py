from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import sql
from pydantic import ValidationError
from tests.conftest import frozen, unavailable
from tests.errors import code_of
from tests.tables.conftest import Copy

import headrace.tables.postgres.reader as postgres_reader
from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError
from headrace.core.positions import Position
from headrace.core.tables import UNCHANGED, CapturedBatch, TableReader, TableShape
from headrace.tables.postgres import PostgresTable
from headrace.tables.postgres import snapshot as postgres_snapshot
from headrace.tables.postgres import stream as postgres_stream
from headrace.testing.services import Postgres

HERE = Context(Path("/project"), "state")
SOON = 20.0


def source(url: str = "postgresql://127.0.0.1:1/shop", table: str = "orders", **options: Any) -> PostgresTable:
    return PostgresTable.model_validate({"type": "postgres", "url": url, "table": table} | options)


def wait_until(done: Callable[[], bool]) -> None:
    limit = time.monotonic() + SOON
    while not done():
        assert time.monotonic() < limit, "it did not come to that"
        time.sleep(0.01)


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
    taken: list[CapturedBatch] = field(default_factory=list)
    again: Callable[[], None] = field(default=lambda: None)

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
        self.again = lambda: self.open(keys, **tables)

    def step(self, seconds: float = 1.0) -> CapturedBatch | None:
        """What a capture does."""
        assert self.reader is not None
        taken = self.reader.read(seconds)
        if taken is not None:
            self.copy.take(taken)
            self.taken.append(taken)
            self.position = taken.position
            self.reader.confirm(taken.position)
        return taken

    def patiently(self, seconds: float = 0.05) -> None:
        """The same, with a new reader while the server has not noticed that the last one is gone."""
        try:
            self.step(seconds)
        except ProjectError as error:
            if error.code != "slot-in-use":
                raise
            self.again()

    def until(self, done: Callable[[], bool]) -> None:
        limit = time.monotonic() + SOON
        while not done():
            assert time.monotonic() < limit, "it did not come to that"
            self.patiently()

    def agree(self, query: str, name: str = "t") -> None:
        """Until the copy is what the table is."""
        wanted = self.rows(query)
        self.until(lambda: name in self.copy.rows and self.found(name) == wanted)

    def found(self, name: str = "t") -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self.copy.dicts(name)]

    def confirmed(self) -> int:
        ((flushed,),) = self.rows(
            f"SELECT (confirmed_flush_lsn - '0/0')::int8 FROM pg_replication_slots WHERE slot_name = '{self.slot}'"
        )
        return int(flushed)

    def whole(self, *names: str) -> bool:
        return self.position is not None and set(names) <= set(self.position["tables"])

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
            self.reader = None


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
        held = "SELECT count(*) FROM pg_replication_slots WHERE active AND database = current_database()"
        wait_until(lambda: made.rows(held) == [(0,)])
        made.connection.close()  # a test may have made another
    with psycopg.connect(base, autocommit=True) as admin:
        for (slot,) in admin.execute(
            "SELECT slot_name FROM pg_replication_slots WHERE database = %s AND NOT active", (name,)
        ).fetchall():
            admin.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def test_options_that_cannot_be() -> None:
    for options in ({"url": "127.0.0.1:5432"}, {"slot": "Not-a-slot"}, {"slots": "x"}):
        with pytest.raises(ValidationError):
            source(**options)
    assert code_of(lambda: source(timeout="2s").check(HERE)) == "service-away"
    with pytest.raises(ProjectError) as caught:
        source("postgresql://me:s3%cret@127.0.0.1:1/shop").check(HERE)
    assert caught.value.code == "postgres-url"
    assert "cret" not in str(caught.value)


def test_nothing_secret_is_said() -> None:
    one = source("postgresql://me:s3cret@db:5432/Shop-1", password="s3cret")
    assert one.label == "postgres orders at db:5432/Shop-1"
    assert re.fullmatch(r"headrace_shop_1_[0-9a-f]{8}", one.slot_name)
    assert one.slot_name == source("postgresql://you@db:5432/Shop-1", table="other").slot_name
    assert one.group == f"postgres db:5432/Shop-1 {one.slot_name}"
    assert "s3cret" not in repr(one) + repr(one.server(HERE)) + one.group


def test_tables_of_one_slot_have_one_publication() -> None:
    tables = {"a": source(table="a"), "b": source(table="b", publication="p")}
    assert code_of(lambda: PostgresTable.reader(tables, {}, None, HERE)) == "publication-unfit"


MANY = "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 4000) g"


def write(url: str, until: threading.Event, counted: list[int]) -> None:
    """Transactions of inserts, updates, deletes and changed keys, without a pause."""
    with psycopg.connect(url) as connection:
        while not until.is_set():
            n = len(counted)
            connection.execute(
                "INSERT INTO t SELECT g, 'new' FROM generate_series(%s::int, %s::int) g", (10000 + 3 * n, 10002 + 3 * n)
            )
            connection.execute("UPDATE t SET v = 'w' || %s WHERE id %% 500 = %s", (n, n % 500))
            connection.execute("DELETE FROM t WHERE id = %s", (n * 7 % 4000,))
            connection.execute("UPDATE t SET id = -id WHERE id = %s", (n * 11 % 4000,))
            connection.commit()
            counted.append(n)


@pytest.mark.service
def test_rows_and_changes_meet_while_others_write(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_snapshot, "_ROWS", 300)
    db.run(MANY)
    stop, counted = threading.Event(), list[int]()
    writer = threading.Thread(target=write, args=(db.url, stop, counted))
    writer.start()
    try:
        wait_until(lambda: len(counted) > 5)
        db.open(t=db.table("t"))
        db.until(lambda: len(db.taken) > 4)
        assert db.taken[1].begins == {"t"}
        assert not db.whole("t")
        db.open(t=db.table("t"))  # cut off in the middle: all rows come again
        db.until(lambda: db.whole("t"))
        assert db.copy.begun == ["t", "t"]
        during = len(counted)
        wait_until(lambda: len(counted) > during + 5)
        db.open(t=db.table("t"))  # cut off later: it goes on
        db.patiently(1.0)
    finally:
        stop.set()
        writer.join()
    db.agree("SELECT * FROM t ORDER BY id")
    assert db.copy.begun == ["t", "t"]
    assert [row for row in db.found() if row[0] < 0]
    newest = db.taken[-1].at
    assert newest is not None
    assert abs((datetime.now(UTC) - newest).total_seconds()) < 60
    assert db.reader is not None
    assert db.reader.lag() is not None


@pytest.mark.service
def test_only_what_is_durable_moves_the_slot(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_stream, "_ASK_SECONDS", 0.1)
    monkeypatch.setattr(postgres_reader, "_MOVE_SECONDS", 0.1)
    db.run(MANY, "CREATE TABLE other (id int)")
    db.open(t=db.table("t"))
    db.until(lambda: db.whole("t"))
    db.run("DELETE FROM t WHERE id < 10")
    db.agree("SELECT * FROM t ORDER BY id")
    begun = db.confirmed()
    assert db.reader is not None
    db.run("DELETE FROM t WHERE id < 20")
    told = [db.reader.read(0.2) for _ in range(5)]  # keepalives come and are answered
    assert sum(len(taken.changes) for taken in told if taken is not None) == 10
    assert db.confirmed() == begun
    db.open(t=db.table("t"))  # not durable, so it comes again
    db.agree("SELECT * FROM t ORDER BY id")
    wait_until(lambda: db.confirmed() > begun)
    # nothing of ours happens: the place moves on all the same, once it is durable
    settled = db.confirmed()
    db.run("INSERT INTO other SELECT generate_series(1, 1000)")
    ((end,),) = db.rows("SELECT (pg_current_wal_lsn() - '0/0')::int8")
    db.until(lambda: db.confirmed() >= end)
    assert end > settled
    assert not db.taken[-1].changes
    assert db.copy.begun == ["t"]


@pytest.mark.service
def test_changes_of_all_kinds(db: Database) -> None:
    everything = "SELECT * FROM t ORDER BY id"
    db.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT g, 'v', repeat('x', 9000 + g) FROM generate_series(1, 10) g",
    )
    db.open(t=db.table("t"))
    db.until(lambda: db.whole("t"))
    db.run("UPDATE t SET v = 'small' WHERE id = 1", "UPDATE t SET id = 100 WHERE id = 2")
    db.agree(everything)
    changes = [change for taken in db.taken for change in taken.changes]
    assert changes[0].row == [1, "small", UNCHANGED]
    assert (changes[1].before, changes[1].row) == ((2,), [100, "v", UNCHANGED])
    db.run("BEGIN; INSERT INTO t VALUES (200, 'gone'); TRUNCATE t; INSERT INTO t VALUES (1, 'again'), (2, ''); COMMIT")
    db.agree(everything)
    assert db.taken[-1].begins == db.taken[-1].ends == {"t"}
    db.run("BEGIN; INSERT INTO t VALUES (3, 'before'); ALTER TABLE t ADD more numeric(9,2) DEFAULT 7; COMMIT")
    db.run("INSERT INTO t VALUES (4, 'after', null, 1.50)")
    db.agree("SELECT id, v, big, CASE WHEN id = 4 THEN more END FROM t ORDER BY id")
    assert db.copy.shapes["t"].columns.field("more").type == pa.decimal128(9, 2)
    db.run("ALTER TABLE t DROP COLUMN v", "UPDATE t SET more = id")
    db.agree("SELECT id, null, big, more FROM t ORDER BY id")
    db.open(t=db.table("t"))
    db.run("ALTER TABLE t ALTER more TYPE text", "UPDATE t SET big = 'b'")
    assert code_of(lambda: db.until(lambda: False)) == "table-type-changed"


IDS = st.integers(1, 6)
BIG = "repeat(md5(%s::text), 200)"
STATEMENTS = st.one_of(
    st.builds(
        "INSERT INTO t VALUES ({0}, '{1}', {2}) ON CONFLICT (id) DO UPDATE SET v = '{1}'".format,
        IDS, IDS, IDS.map(lambda n: BIG % n),
    ),
    st.builds("UPDATE t SET v = '{1}' WHERE id >= {0}".format, IDS, IDS),
    st.builds("UPDATE t SET big = {1} WHERE id = {0}".format, IDS, IDS.map(lambda n: BIG % n)),
    st.builds("UPDATE t SET id = {1} WHERE id = {0} AND NOT EXISTS (SELECT FROM t WHERE id = {1})".format, IDS, IDS),
    st.builds("DELETE FROM t WHERE id = {0}".format, IDS),
    st.just("TRUNCATE t"),
    st.just("SAVEPOINT s; DELETE FROM t; ROLLBACK TO s"),
    st.sampled_from(["COMMIT; BEGIN", "COMMIT; BEGIN", "ROLLBACK; BEGIN"]),
    st.sampled_from(["read", "restart", "crash"]),
)  # fmt: skip


@pytest.mark.service
def test_any_changes_and_any_ends_of_the_reader(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_reader, "LIMIT", 3)
    db.run("CREATE TABLE t (id int PRIMARY KEY, v text, big text)", "ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    db.open(t=db.table("t"))
    db.until(lambda: db.whole("t"))

    def do(word: str) -> None:
        match word:
            case "read":
                db.patiently(0.02)
            case "restart":
                db.open(t=db.table("t"))
            case "crash":
                with suppress(ProjectError):
                    assert db.reader is not None
                    db.reader.read(0.02)  # taken, but never durable
                db.open(t=db.table("t"))
            case statement:
                db.run(statement)

    @settings(max_examples=25)
    @given(st.lists(STATEMENTS, min_size=5, max_size=25))
    def agrees(words: list[str]) -> None:
        db.run("BEGIN")
        for word in words:
            do(word)
        db.run("COMMIT")
        db.agree("SELECT * FROM t ORDER BY id")

    agrees()
    assert not [taken for taken in db.taken if taken.rows.get("t") is not None and taken.rows["t"].num_rows]


COLUMNS = """
    b bool, i2 smallint, i4 int, i8 bigint, f4 real, f8 double precision, n numeric, n2 numeric(12,3), t text,
    vc varchar(20), c char(5), e mood, d price, ba bytea, u uuid, da date, ti time, ts timestamp, tz timestamptz,
    j json, jb jsonb, ai int[], at text[], aa int[][], an numeric(9,2)[], ats timestamp[], ae mood[], p point,
    iv interval, ip inet, r int4range, x xml, ci citext, em numeric
"""
VALUES = [
    """true, -32768, 2147483647, -9223372036854775808, 1.1, 0.1, 1e19, -123456789.125, E'a"b,\n\\.é', '', 'ab', 'ok',
    9.99, '\\x00ff', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '2024-02-29', '23:59:59.5', '0001-01-01 00:00:00.000001',
    '2024-06-01 12:00:00.25+02', '{"a": 1}', '{"b": [1, 2]}', '{1,NULL,3}', '{"a,b","",NULL,"q\\"q"}',
    '{{1,2},{3,4}}', '{1.50,2}', '{"2024-01-01 00:00:00"}', '{ok,bad}', '(1.5,-2)', '1 year 2 days 03:04:05',
    '10.0.0.0/8', '[1,5)', '<a/>', 'CaSe', 1.0""",
    """false, 0, 0, 0, 'NaN', '-Infinity', 'NaN', 0, '', '{}', '', 'bad', 0, '', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12',
    'infinity', '00:00', 'infinity', '-infinity', 'null', '[]', '{}', '{}', '{}', '{}', '{}', '{}', '(NaN,Infinity)',
    '-1 mon', '::1/64', 'empty', '', '', 99999999999999999999.999999999999999999""",
    ", ".join(["null"] * 34),
]
TEXTS = {"e", "u", "ti", "j", "iv", "ip", "r", "x", "ci", "c", "jb"}
FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999)


@pytest.mark.service
def test_values_of_all_types_are_those_that_sql_gives(db: Database) -> None:
    db.run(
        "CREATE EXTENSION citext; CREATE TYPE mood AS ENUM ('ok', 'bad'); CREATE DOMAIN price AS numeric(9,2)",
        f"CREATE TABLE t (id int PRIMARY KEY, {COLUMNS}, twice int GENERATED ALWAYS AS (i4 / 2) STORED)",
        *(f"INSERT INTO t VALUES ({n}, {values})" for n, values in enumerate(VALUES)),
    )
    db.open(t=db.table("t"))
    db.until(lambda: db.whole("t"))
    db.run(*(f"INSERT INTO t VALUES ({n + 10}, {values})" for n, values in enumerate(VALUES)))
    db.until(lambda: len(db.copy.rows["t"]) == 6)
    names = db.copy.shapes["t"].columns.names
    assert "twice" not in names
    asked = ", ".join(
        f"{name}::text" if name in TEXTS
        else f"{name}::text[]" if name == "ae"
        else f"CASE WHEN {name} = 'NaN' THEN null ELSE {name}::numeric(38,18) END" if name in ("n", "em")
        else f"ARRAY[{name}[0], {name}[1]]" if name == "p"
        else f"CASE WHEN isfinite({name}) THEN {name} END" if name in ("da", "ts", "tz")
        else name
        for name in names
    )  # fmt: skip
    db.run("SET TimeZone = 'UTC'")
    for found, wanted in zip(db.copy.dicts("t"), db.rows(f"SELECT {asked} FROM t ORDER BY id"), strict=True):
        expected = dict(zip(names, wanted, strict=True))
        if found["id"] % 10 == 1:
            assert (found["da"], found["ts"], found["tz"]) == (LAST.date(), LAST, FIRST)
            expected |= {"da": LAST.date(), "ts": LAST, "tz": FIRST}
        point = [found["p"]["x"], found["p"]["y"]] if found["p"] else [None, None]
        single = found["f4"] and pytest.approx(found["f4"], nan_ok=True)
        assert expected.pop("f4") == single
        assert said({**found, "p": point}, without="f4") == said(expected)
    assert [said(row) for row in db.copy.dicts("t")[:3]] == [
        said({**row, "id": row["id"] % 10}) for row in db.copy.dicts("t")[3:]
    ]


def said(row: Mapping[str, Any], without: str = "") -> str:
    """For comparing: NaN is not equal to itself, and Arrow has another word for UTC."""
    kept = {name: value for name, value in row.items() if name != without}
    return repr(kept).replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc")


@pytest.mark.service
def test_a_value_that_spark_cannot_hold_is_named(db: Database) -> None:
    db.run(
        "CREATE TABLE t (id int PRIMARY KEY, n numeric, d date)",
        "INSERT INTO t VALUES (1, 1, 'today'), (2, 1e20, null)",
    )
    db.open(t=db.table("t"))
    db.step()
    with pytest.raises(ProjectError) as caught:
        db.step()
    assert caught.value.code == "table-value"
    assert "table 't', row (2), column 'n': 100000000000000000000" in caught.value.message
    db.open(t=db.table("t", texts=["n", "d"]))
    db.until(lambda: db.whole("t"))
    db.run("INSERT INTO t VALUES (3, 'NaN', '0044-03-15 BC')")
    db.agree("SELECT id, n::text, d::text FROM t ORDER BY id")


@pytest.mark.service
def test_a_large_transaction_comes_in_parts_and_none_twice(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_reader, "LIMIT", 100)
    db.run(MANY, "ALTER TABLE t ADD big text", "ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    db.run("UPDATE t SET big = repeat('x', 3000) WHERE id <= 150")
    db.open(t=db.table("t"))
    db.until(lambda: db.whole("t"))
    before = db.position
    db.run(
        "BEGIN; UPDATE t SET v = 'u' WHERE id <= 150; DELETE FROM t WHERE id <= 150; INSERT INTO t VALUES (-1); COMMIT"
    )
    db.until(lambda: any(taken.changes for taken in db.taken))
    for _ in range(2):
        db.step()
    assert before is not None
    assert db.position is not None
    assert db.position["lsn"] == before["lsn"]
    assert db.position["within"][1] >= 200
    db.open(t=db.table("t"))  # rows that are deleted by now are not told again
    db.agree("SELECT * FROM t ORDER BY id")
    db.until(lambda: db.position is not None and "within" not in db.position)
    assert sum(len(taken.changes) for taken in db.taken) == 301


@pytest.mark.service
def test_a_table_that_joins_later_comes_in_where_the_others_are(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_snapshot, "_ROWS", 1000)
    db.run(
        MANY,
        "CREATE TABLE late (id int PRIMARY KEY, v int)",
        "INSERT INTO late SELECT g, 0 FROM generate_series(1, 3000) g",
    )
    db.open(t=db.table("t"))
    db.until(lambda: db.whole("t"))
    both = "BEGIN; UPDATE t SET v = '%s' WHERE id = 1; UPDATE late SET v = %s WHERE id = 1; COMMIT"
    db.run(both % (1, 1))
    db.open(t=db.table("t"), late=db.table("late"))
    db.patiently()
    db.run(both % (2, 2))
    db.until(lambda: db.whole("t", "late"))
    begins = next(taken for taken in db.taken if "late" in taken.begins)
    assert db.copy.begun == ["t", "late"]
    # at the place of the snapshot the one table is as new as the other
    seen = Copy()
    for taken in db.taken:
        seen.take(taken)
        if taken.position["lsn"] == begins.position["lsn"] and "late" in taken.ends:
            assert seen.rows["t"][(1,)][1] == str(seen.rows["late"][(1,)][1])
    db.run(both % (3, 3), "DELETE FROM late WHERE id > 10")
    db.agree("SELECT * FROM late ORDER BY id", "late")
    db.agree("SELECT * FROM t ORDER BY id")
    db.open(late=db.table("late"))  # one that leaves
    assert db.step() == CapturedBatch(db.position or {})
    assert not db.whole("t")  # should it come back, its rows have to be read anew
    db.run(both % (4, 4))
    db.agree("SELECT * FROM late ORDER BY id", "late")
    assert {change.table for change in db.taken[-1].changes} == {"late"}
    assert db.rows("SELECT tablename FROM pg_publication_tables") == [("late",)]
    # one that is made anew has other rows
    db.run("DROP TABLE late", "CREATE TABLE late (id int PRIMARY KEY, v int)", "INSERT INTO late VALUES (77, 7)")
    db.open(late=db.table("late"))
    db.agree("SELECT * FROM late ORDER BY id", "late")


@pytest.mark.service
def test_what_tells_rows_apart(db: Database) -> None:
    db.run(
        "CREATE TABLE f (a int, b text, c text); ALTER TABLE f REPLICA IDENTITY FULL",
        "CREATE TABLE i (a int NOT NULL, b text); CREATE UNIQUE INDEX i_a ON i (a)",
        "ALTER TABLE i REPLICA IDENTITY USING INDEX i_a",
        "CREATE TABLE n (a int PRIMARY KEY); ALTER TABLE n REPLICA IDENTITY NOTHING",
        "CREATE TABLE d (a int)",
        "CREATE TABLE p (a int, b text, PRIMARY KEY (b, a)) PARTITION BY RANGE (a)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
        "INSERT INTO f VALUES (1, 'x', 'y'); INSERT INTO i VALUES (1, 'x'); INSERT INTO p VALUES (1, 'x'), (11, 'y')",
    )
    assert db.table("p").shape(HERE).key == ("b", "a")
    assert db.table("i").shape(HERE).key == ("a",)
    assert db.table("f").shape(HERE).key == ()
    for table in ("n", "d"):
        assert code_of(lambda table=table: db.table(table).shape(HERE)) == "table-identity"
    db.open(f=db.table("f"))
    assert code_of(db.step) == "table-needs-key"
    db.open({"i": ("b",)}, i=db.table("i"))
    assert code_of(db.step) == "table-identity"
    db.open({"f": ("a", "b")}, f=db.table("f"), i=db.table("i"), p=db.table("p"))
    db.until(lambda: db.whole("f", "i", "p"))
    db.run(
        "UPDATE f SET c = 'z'; UPDATE f SET a = 2; INSERT INTO f VALUES (3, 'x', null); DELETE FROM f WHERE a = 3",
        "UPDATE i SET a = 5; INSERT INTO i VALUES (6, 'y'); DELETE FROM i WHERE a = 5",
        "UPDATE p SET a = 12 WHERE a = 1; UPDATE p SET a = 13 WHERE a = 12; DELETE FROM p WHERE a = 11",
    )
    for table in "fip":
        db.agree(f"SELECT * FROM {table}", table)


@pytest.mark.service
def test_a_slot_that_is_not_as_it_was_left(db: Database) -> None:
    db.run(MANY, f"SELECT pg_create_logical_replication_slot('{db.slot}', 'pgoutput')")
    db.open(t=db.table("t"))
    assert code_of(db.step) == "slot-exists"
    db.run(f"SELECT pg_drop_replication_slot('{db.slot}')")
    db.open(t=db.table("t"))
    db.until(lambda: db.whole("t"))
    db.run("DELETE FROM t WHERE id > 9")
    db.agree("SELECT * FROM t ORDER BY id")
    first, db.reader = db.reader, None
    db.open(t=db.table("t"))
    with pytest.raises(ProjectError) as caught:
        db.step()
    assert (caught.value.code, caught.value.exit_code) == ("slot-in-use", Exit.TRANSIENT)
    assert first is not None
    first.close()
    first.close()
    wait_until(lambda: db.rows("SELECT active FROM pg_replication_slots") == [(False,)])
    db.run(
        "DELETE FROM t WHERE id > 5",
        "SELECT pg_replication_slot_advance(slot_name, pg_current_wal_lsn()) FROM pg_replication_slots",
    )
    db.open(t=db.table("t"))
    assert code_of(db.step) == "slot-missing"
    db.run(f"SELECT pg_drop_replication_slot('{db.slot}')")
    db.open(t=db.table("t"))
    assert code_of(db.step) == "slot-missing"
    # cut off while the slot was made: it is ours, and is made again
    assert db.position is not None
    db.position = {**db.position, "lsn": None, "tables": {}}
    db.run(f"SELECT pg_create_logical_replication_slot('{db.slot}', 'pgoutput')")
    db.open(t=db.table("t"))
    db.agree("SELECT * FROM t ORDER BY id")
    db.close()
    db.run("CREATE TABLE other (id int)", f"ALTER PUBLICATION {db.slot} SET TABLE other")
    db.open(t=db.table("t"))
    assert code_of(db.step) == "publication-missing"
    db.run(f"DROP PUBLICATION {db.slot}")
    db.open(t=db.table("t"))
    assert code_of(db.step) == "publication-missing"


@pytest.mark.service
def test_a_log_that_the_server_has_thrown_away(db: Database) -> None:
    db.run(MANY)
    db.open(t=db.table("t"))
    db.until(lambda: db.whole("t"))
    db.close()
    lost = f"SELECT wal_status FROM pg_replication_slots WHERE slot_name = '{db.slot}'"
    db.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    try:
        for _ in range(4):
            db.run("UPDATE t SET v = v || '.'", "SELECT pg_switch_wal()", "CHECKPOINT")
        wait_until(lambda: db.rows(lost) == [("lost",)])
    finally:
        db.run("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
    db.open(t=db.table("t"))
    assert code_of(db.step) == "slot-missing"


@pytest.mark.service
def test_what_is_dropped_or_still_being_written_is_waited_for(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_stream, "_ASK_SECONDS", 0.1)
    monkeypatch.setattr(postgres_reader, "_MOVE_SECONDS", 0.1)
    db.run(MANY)
    with psycopg.connect(db.url) as other:
        other.execute("DELETE FROM t WHERE id > 4")
        db.open(t=db.table("t"))
        assert [db.step(0.1) for _ in range(4)][1:] == [None, None, None]
        assert db.rows("SELECT count(*) FROM pg_replication_slots WHERE active") == [(1,)]
        db.close()
        wait_until(lambda: db.rows("SELECT count(*) FROM pg_replication_slots WHERE active") == [(0,)])
        db.open(t=db.table("t"))
        db.step(0.1)
        other.commit()
    db.until(lambda: db.whole("t"))
    assert db.found() == [(n, f"v{n}") for n in range(1, 5)]
    db.until(lambda: db.reader is not None and db.reader.lag() == 0)
    db.run("DROP TABLE t")
    assert code_of(lambda: db.until(lambda: False)) == "service-away"
    db.open(t=db.table("t"))
    assert code_of(db.step) == "postgres-missing"


@pytest.mark.service
def test_a_publication_of_somebody_elses(db: Database) -> None:
    db.run(MANY, "CREATE TABLE other (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE other")
    given = db.table("t", publication="p")
    assert code_of(lambda: given.check(HERE)) == "publication-unfit"
    db.run("ALTER PUBLICATION p SET TABLE t WHERE (id > 3)")
    assert code_of(lambda: given.check(HERE)) == "publication-unfit"
    db.run("ALTER PUBLICATION p SET TABLE t, other", "ALTER PUBLICATION p SET (publish = 'insert')")
    assert code_of(lambda: given.check(HERE)) == "publication-unfit"
    assert code_of(lambda: db.table("t", publication="q").check(HERE)) == "publication-missing"
    db.run("ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')")
    given.check(HERE)
    db.open(t=given)
    db.until(lambda: db.whole("t"))
    db.run("INSERT INTO other VALUES (1)", "DELETE FROM t WHERE id > 7")
    db.agree("SELECT * FROM t ORDER BY id")
    assert db.rows("SELECT pubname FROM pg_publication") == [("p",)]


@pytest.mark.service
def test_what_the_server_must_allow(db: Database) -> None:
    role = f"r_{db.slot}"
    url = db.url.replace("postgres@", f"{role}@")
    db.run(f"CREATE ROLE {role} LOGIN", "CREATE TABLE t (id int PRIMARY KEY)")
    one = source(url, "t")
    assert code_of(lambda: one.check(HERE)) == "replication-role"
    db.run(f"ALTER ROLE {role} REPLICATION")
    assert code_of(lambda: one.check(HERE)) == "service-authentication"
    db.run(f"ALTER TABLE t OWNER TO {role}", f'GRANT CREATE ON DATABASE "{db.slot}" TO {role}')
    one.check(HERE)
    assert code_of(lambda: source(url, "tt").check(HERE)) == "postgres-missing"
    assert code_of(lambda: source(url, "t", texts=["idd"]).check(HERE)) == "unknown-column"
    assert code_of(lambda: source(url + "x", "t").check(HERE)) == "postgres-missing"
    db.open(t=one, u=one)
    assert code_of(db.step) == "duplicate-name"
    db.open(t=source(url, "t", slot=db.slot))
    db.until(lambda: db.whole("t"))
    db.run("INSERT INTO t VALUES (1)")
    db.agree("SELECT * FROM t")
    db.close()
    for number in range(19):
        db.run(f"SELECT pg_create_physical_replication_slot('{db.slot}_{number}')")
    try:
        assert code_of(lambda: one.check(HERE)) == "slots-used-up"
    finally:
        for number in range(19):
            db.run(f"SELECT pg_drop_replication_slot('{db.slot}_{number}')")
        db.run(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


class WithoutLogical(Postgres):
    """A server as it comes."""

    def prepare(self, chosen: Mapping[str, int]) -> list[str]:
        return [*super().prepare(chosen), "-c", "wal_level=replica"]


@pytest.mark.service
def test_a_server_whose_log_does_not_tell_rows(postgres: Postgres) -> None:
    with WithoutLogical() as server:
        assert code_of(lambda: source(server.env["POSTGRES_URL"]).check(HERE)) == "wal-level"


@pytest.mark.service
def test_a_server_that_goes_away_and_comes_back(
    db: Database, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.run(MANY)
    db.open(t=db.table("t"))
    db.until(lambda: db.whole("t"))
    db.step(0.2)
    with monkeypatch.context() as impatient:
        impatient.setattr(postgres_stream, "_SILENCE_SECONDS", 0.3)
        impatient.setattr(postgres_stream, "_ASK_SECONDS", 0.1)
        with frozen(postgres.port):
            assert code_of(lambda: db.until(lambda: False)) == "service-away"
    db.open(t=db.table("t"))
    wait_until(lambda: db.rows("SELECT count(*) FROM pg_replication_slots WHERE active") == [(0,)])
    db.step(0.2)
    stopping = threading.Thread(target=postgres.stop)  # the server waits for us to have all
    stopping.start()
    with pytest.raises(ProjectError) as caught:
        db.until(lambda: False)
    stopping.join(10)
    assert not postgres.is_running()
    assert (caught.value.code, caught.value.exit_code) == ("service-away", Exit.TRANSIENT)
    db.open(t=db.table("t"))
    assert code_of(db.step) == "service-away"
    postgres.start()
    db.connection = psycopg.connect(db.url, autocommit=True)
    db.run("DELETE FROM t WHERE id > 7", "INSERT INTO t VALUES (9000, 'after')")
    db.open(t=db.table("t"))
    db.agree("SELECT * FROM t ORDER BY id")
    assert db.copy.begun == ["t"]
