from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from pydantic import ValidationError
from tests.conftest import frozen, unavailable
from tests.errors import code_of
from tests.sinks.changes import KEY, LIFE, after, frame, live
from tests.sinks.conftest import Desk
from tests.sinks.trials import Trial, running

from headrace.core.capabilities import Candidate
from headrace.core.context import Context
from headrace.core.endpoints import Op
from headrace.core.errors import ProjectError
from headrace.core.schema import from_ddl
from headrace.sinks.postgres import PostgresSink
from headrace.sinks.postgres.server import explanation
from headrace.sinks.postgres.table import ServerTable, TableColumn, column_type, create_statement, require_fit
from headrace.sinks.postgres.write import BatchWrite, Merge
from headrace.testing.services import Postgres

HERE = Context(Path("/project"), "state")


def sink(**options: Any) -> PostgresSink:
    given = {"type": "postgres", "url": "postgresql://127.0.0.1:1/shop", "table": "orders", "retry_for": "50ms"}
    return PostgresSink.model_validate(given | options)


def test_options_that_cannot_be() -> None:
    for options in (
        {"url": "127.0.0.1:5432"},
        {"sequence": "v"},
        {"delete": "gone"},
        {"merge": True},
        {"keep": ["v"]},
        {"key": ["id"], "delete": "gone", "merge": True},
        {"key": ["id"], "keep": ["id"]},
    ):
        with pytest.raises(ValidationError):
            sink(**options)


def test_nothing_secret_is_said() -> None:
    out = sink(url="postgresql://me:s3cret@db:5432/shop", password="s3cret")
    assert out.label == "postgres orders at db:5432/shop"
    assert "s3cret" not in repr(out) + repr(out.server(HERE))


def test_plans_are_refused_before_they_run() -> None:
    assert code_of(lambda: sink().check_rows(HERE, ["id"], "update", None)) == "sink-needs-key"
    assert code_of(lambda: sink(key=["idd"]).check_rows(HERE, ["id"], "update", None)) == "unknown-column"
    keyed = {"key": ["id"]}
    assert code_of(lambda: sink(**keyed, sequence="v").check_rows(HERE, ["id"], "append", None)) == "unknown-column"
    sink(key=["id", "who"]).check_rows(HERE, ["id", "who.name"], "update", None)
    rows = from_ddl("id int, gone int")
    assert (
        code_of(lambda: sink(**keyed, delete="gone").check_rows(HERE, rows.names, "append", rows)) == "sink-column-type"
    )
    assert code_of(lambda: sink().check(HERE)) == "service-away"


def test_types_of_a_new_table() -> None:
    ddl = (
        "a array<int>, b array<array<int>>, c map<string,int>, d decimal(9,2), e timestamp_ntz, f array<struct<x:int>>"
    )
    kinds = [column_type(field.type) for field in from_ddl(ddl)]
    assert kinds == ["integer[]", "jsonb", "jsonb", "numeric(9,2)", "timestamp", "jsonb"]
    made = create_statement("public", 'odd"name', from_ddl("id bigint, at timestamp"), ["id"]).as_string(None)
    assert made == (
        'CREATE TABLE IF NOT EXISTS "public"."odd""name" ("id" bigint, "at" timestamptz, PRIMARY KEY ("id"))'
    )


ORDERS = ServerTable(
    "public",
    "orders",
    (
        TableColumn("id", "bigint", "int8", "N", needed=True),
        TableColumn("name", "text", "text", "S", needed=False),
        TableColumn("at", "timestamp with time zone", "timestamptz", "D", needed=False),
        TableColumn("tags", "text[]", "_text", "A", needed=False),
        TableColumn("doc", "jsonb", "jsonb", "U", needed=False),
    ),
    (("id",),),
)


@pytest.mark.parametrize(
    ("rows", "key", "code"),
    [
        ("id int, name string", ["id"], None),
        ("id string, tags array<string>, doc struct<a: int>, at date", [], None),
        ("id bigint, name struct<a: int>, doc array<int>", [], None),
        ("id bigint, nmae string", [], "postgres-column-missing"),
        ("id double", [], "postgres-type"),
        ("id bigint, at bigint", [], "postgres-type"),
        ("id bigint, tags map<string,int>", [], "postgres-type"),
        ("id bigint, doc binary", [], "postgres-type"),
        ("name string", [], "postgres-column-needed"),
        ("id bigint, name string", ["name"], "postgres-key"),
    ],
)
def test_what_a_table_can_take(rows: str, key: list[str], code: str | None) -> None:
    if code is None:
        require_fit(ORDERS, from_ddl(rows), key)
    else:
        assert code_of(lambda: require_fit(ORDERS, from_ddl(rows), key)) == code


def test_statements() -> None:
    stage = sql.Identifier("stage")

    def text(**options: Any) -> str:
        given = {"columns": ("id", "name"), "key": (), "sequence": None, "deletes": False}
        return Merge(ORDERS, sql.Identifier("marks"), **(given | options)).statement(stage).as_string(None)

    assert text() == (
        'INSERT INTO "public"."orders" ("id", "name") SELECT "id", "name" FROM "stage" '
        'WHERE "_headrace_attempt" = ANY(%s)'
    )
    assert text(key=("id", "name")).endswith('ON CONFLICT ("id", "name") DO NOTHING')
    assert text(key=("id",)).endswith('ON CONFLICT ("id") DO UPDATE SET "name" = excluded."name"')
    full = text(columns=("id", "name", "at"), key=("id",), sequence="at", deletes=True)
    assert 'ORDER BY "id", "at" DESC NULLS LAST, "_headrace_task" DESC, "_headrace_row" DESC' in full
    assert 'AND last."_headrace_gone" AND (held."at" IS NULL OR last."at" >= held."at")' in full


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    problem = Postgres.problem()
    if problem is not None:
        unavailable(problem)
    with Postgres() as running:
        yield running


@pytest.fixture
def held(server: Postgres) -> Iterator[Any]:
    with psycopg.connect(server.env["POSTGRES_URL"], autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        yield connection


def rows_of(held: Any, text: str = "SELECT * FROM orders ORDER BY 1, 2") -> list[Any]:
    return list(held.execute(text).fetchall())


def at(server: Postgres, **options: Any) -> PostgresSink:
    return sink(url=server.env["POSTGRES_URL"], retry_for="20s", **options)


@pytest.mark.service
def test_check_says_what_is_missing(server: Postgres, held: Any) -> None:
    assert code_of(lambda: at(server).check(HERE)) == "sink-missing"
    at(server, create=True).check(HERE)
    held.execute("CREATE TABLE orders (id bigint PRIMARY KEY, name text NOT NULL)")
    at(server).check(HERE)
    rows = from_ddl("id bigint, name double")
    at(server).check_rows(HERE, rows.names, "append", rows)
    wrong = from_ddl("id bigint, nam string")
    assert code_of(lambda: at(server).check_rows(HERE, wrong.names, "append", wrong)) == "postgres-column-missing"
    missing = sink(url=f"postgresql://postgres@{server.address}/nowhere")
    assert code_of(lambda: missing.check(HERE)) == "sink-missing"
    held.execute(
        "DROP ROLE IF EXISTS clerk; CREATE ROLE clerk LOGIN; GRANT SELECT ON orders TO clerk; "
        "GRANT USAGE ON SCHEMA public TO clerk"
    )
    clerk = sink(url=f"postgresql://{server.address}/postgres", username="clerk")
    with pytest.raises(ProjectError, match="INSERT ON orders") as caught:
        clerk.check(HERE)
    assert caught.value.code == "service-authentication"
    held.execute("DROP OWNED BY clerk")
    nobody = sink(url=f"postgresql://{server.address}/postgres", username="nobody-here")
    assert code_of(lambda: nobody.check(HERE)) == "service-authentication"
    secure = sink(url=server.env["POSTGRES_URL"], tls={})
    assert code_of(lambda: secure.check(HERE)) == "service-tls"


@pytest.mark.spark
@pytest.mark.service
def test_all_types_go_through_and_a_batch_is_written_once(spark: Any, server: Postgres, held: Any, desk: Desk) -> None:
    rows = spark.sql(
        """
        SELECT 1L AS id, true AS b, 2Y AS i8, 3S AS i16, 4 AS i32, 1.5F AS f, double('NaN') AS d,
          12345678901234567890.123456789BD AS m, 'a,"b"\\n\\\\N é' AS s, X'00ff' AS raw, date'2026-01-31' AS day,
          timestamp'2026-01-31 12:00:00.123456' AS at, timestamp_ntz'2026-01-31 12:00:00' AS local,
          array('x', NULL, 'y"\\\\,{}', '') AS tags, array(1.5D, NULL) AS numbers, array(array(1), array(2, 3)) AS deep,
          named_struct('a', 1, 'b', timestamp'2026-01-01') AS who, map('k', 1) AS m2,
          array(named_struct('z', 1)) AS many,
          array(timestamp'2026-01-31 12:00:00') AS times, '' AS empty, 'v' AS `in.side`
        UNION ALL
        SELECT 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
          NULL, NULL, NULL, NULL
        """
    )
    out = at(server, create=True)
    batch = desk.batch()
    for _ in range(2):
        out.write_batch(rows.repartition(2), batch)
    first, second = rows_of(held)
    moment = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert str(first[6]) == "nan"
    assert first[:6] + first[7:] == (
        1, True, 2, 3, 4, 1.5, Decimal("12345678901234567890.123456789"), 'a,"b"\n\\N é', b"\x00\xff",
        date(2026, 1, 31), moment.replace(microsecond=123456), datetime(2026, 1, 31, 12), ["x", None, 'y"\\,{}', ""],
        [1.5, None], [[1], [2, 3]], {"a": 1, "b": "2026-01-01T00:00:00.000000Z"}, {"k": 1}, [{"z": 1}], [moment], "",
        {"side": "v"},
    )  # fmt: skip
    assert second == (2, *[None] * 20, {"side": None})
    assert batch.tally.counts() == {("flow", "sink", "written"): 2}
    assert rows_of(held, "SELECT flow, sink, generation, batch_id FROM headrace_marks") == [("flow", "sink", "g1", 0)]
    out.write_batch(rows, desk.batch(generation="g2"))
    assert len(rows_of(held)) == 4
    assert rows_of(held, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'headrace_stage%'") == []


@pytest.mark.spark
@pytest.mark.service
def test_one_row_per_key_the_newest(spark: Any, server: Postgres, held: Any, desk: Desk) -> None:
    held.execute('CREATE TABLE "orders" (id bigint, k text, v int, name varchar(9), made timestamptz DEFAULT now())')
    held.execute("CREATE UNIQUE INDEX ON orders (k, id)")
    out = at(server, key=["id", "k"], sequence="v", delete="gone")

    def write(number: int, *given: str) -> None:
        values = ", ".join(given)
        rows = spark.sql(f"SELECT * FROM VALUES {values} AS t(id, k, v, name, gone)").repartition(2)
        out.write_batch(rows, desk.batch(number, output="update"))

    shown = "SELECT id, k, v, name FROM orders ORDER BY 1, 2"
    write(
        0,
        "(1, 'a', 1, 'one', false)",
        "(1, 'a', 3, 'three', false)",
        "(1, 'a', 2, 'two', NULL)",
        "(2, 'a', 1, 'x', false)",
    )
    assert rows_of(held, shown) == [(1, "a", 3, "three"), (2, "a", 1, "x")]
    write(1, "(1, 'a', 2, 'older', false)", "(2, 'a', 2, 'x', true)", "(3, 'b', 1, 'y', true)")
    assert rows_of(held, shown) == [(1, "a", 3, "three")]
    write(2, "(1, 'a', 1, 'older', true)", "(1, 'b', 1, 'other', false)")
    assert rows_of(held, shown) == [(1, "a", 3, "three"), (1, "b", 1, "other")]
    last = at(server, key=["id", "k"])
    ordered = spark.sql("SELECT * FROM VALUES (9, 'z', 'first'), (9, 'z', 'last') AS t(id, k, name)").coalesce(1)
    last.write_batch(ordered, desk.batch(sink="other"))
    assert rows_of(held, "SELECT name FROM orders WHERE id = 9") == [("last",)]


@pytest.mark.spark
@pytest.mark.service
def test_nulls_leave_what_is_there_and_what_came_first_stays(
    spark: Any, server: Postgres, held: Any, desk: Desk
) -> None:
    held.execute("CREATE TABLE orders (id bigint PRIMARY KEY, at int, name text, tags text[], doc jsonb, first int)")
    held.execute("INSERT INTO orders VALUES (1, 0, 'old', '{a}', '{}', NULL), (2, 5, 'two', NULL, NULL, 7)")
    out = at(server, key=["id"], sequence="at", merge=True, keep=["first"])
    rows = spark.sql(
        "SELECT * FROM VALUES (1L, 2, NULL, array('x', 'y'), NULL, 20), (1L, 1, 'new', array('z'), '[1]', 10), "
        "(1L, 3, NULL, NULL, NULL, NULL), (2L, 4, 'late', NULL, NULL, 8), (3L, 1, NULL, NULL, '1', NULL) "
        "AS t(id, at, name, tags, doc, first)"
    )
    batch = desk.batch()
    for _ in range(2):
        out.write_batch(rows.repartition(2), batch)
    assert rows_of(held) == [
        (1, 3, "new", ["x", "y"], [1], 10),
        (2, 5, "two", None, None, 7),
        (3, 1, None, None, 1, None),
    ]
    out = at(server, key=["id"], keep=["first"])
    out.write_batch(spark.sql("SELECT 2L AS id, CAST(NULL AS STRING) AS name, 9 AS first"), desk.batch(1))
    assert rows_of(held, "SELECT name, first FROM orders WHERE id = 2") == [(None, 7)]


@pytest.mark.spark
@pytest.mark.service
def test_rows_that_the_server_refuses_fail_the_batch_whole(spark: Any, server: Postgres, held: Any, desk: Desk) -> None:
    held.execute("CREATE TABLE orders (id int PRIMARY KEY CHECK (id < 9), name varchar(3))")
    out = at(server, key=["id"])
    for values, said in (
        ("(1, 'a'), (2, 'long')", "too long"),
        ("(1, 'a'), (NULL, 'b')", "null value"),
        ("(1, 'a'), (10, 'b')", "check constraint"),
    ):
        rows = spark.sql(f"SELECT * FROM VALUES {values} AS t(id, name)")
        with pytest.raises(Exception, match=rf"sink-row-refused.*{said}"):
            out.write_batch(rows, desk.batch())
    assert rows_of(held) == []
    assert rows_of(held, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'headrace_stage%'") == []


@pytest.mark.spark
@pytest.mark.service
def test_a_server_that_crashes_before_the_merge_loses_nothing(
    spark: Any, server: Postgres, held: Any, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = at(server, create=True)
    commit = BatchWrite.commit

    def crash_first(self: BatchWrite, *given: Any) -> None:
        server.kill()
        server.start()
        commit(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(BatchWrite, "commit", crash_first)
        assert code_of(lambda: out.write_batch(spark.range(10), desk.batch())) == "service-away"
    out.write_batch(spark.range(10), desk.batch())
    with psycopg.connect(server.env["POSTGRES_URL"]) as connection:
        assert rows_of(connection, "SELECT count(*), count(DISTINCT id) FROM orders") == [(10, 10)]
        assert rows_of(connection, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'headrace_stage%'") == []


@pytest.mark.spark
@pytest.mark.service
def test_of_two_attempts_at_a_batch_one_is_merged_and_what_the_dead_left_is_removed(
    spark: Any, server: Postgres, held: Any, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = at(server, create=True)
    zombies: list[tuple[BatchWrite, Any]] = []
    with monkeypatch.context() as patched:
        patched.setattr(BatchWrite, "commit", lambda self, *given: zombies.append((self, given)))
        out.write_batch(spark.range(10), desk.batch())
    ((write, given),) = zombies
    held.execute(f'ALTER TABLE "{given[0].name}" RENAME TO in_use')  # as if it were locked: it cannot be dropped
    out.write_batch(spark.range(10), desk.batch())
    held.execute(f'ALTER TABLE in_use RENAME TO "{given[0].name}"')
    write.commit(*given)
    assert rows_of(held, "SELECT count(*), count(DISTINCT id) FROM orders") == [(10, 10)]
    assert rows_of(held, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'headrace_stage%'") == []
    with monkeypatch.context() as patched:
        patched.setattr(BatchWrite, "commit", lambda self, *given: None)
        out.write_batch(spark.range(10), desk.batch(1))
    out.write_batch(spark.range(10), desk.batch(1))
    assert rows_of(held, "SELECT count(*) FROM orders") == [(20,)]
    assert rows_of(held, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'headrace_stage%'") == []


@pytest.mark.service
def test_a_server_that_stands_still_is_not_waited_for(
    server: Postgres, held: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.systems.postgres.server._GRACE_SECONDS", 0.0)
    given = sink(url=server.env["POSTGRES_URL"], statement_timeout="300ms", timeout="2s")
    connection = given.server(HERE).connect()
    connection.execute("SELECT 1")
    began = time.monotonic()
    with frozen(server.port):
        assert code_of(lambda: given.check(HERE)) == "service-away", "nor at the door"
        with pytest.raises(psycopg.OperationalError, match="no answer within") as late:
            connection.execute("SELECT 2")
    assert explanation("postgres", late.value).code == "service-away"
    assert connection.closed
    assert time.monotonic() - began < 30


@pytest.mark.spark
@pytest.mark.service
def test_a_table_built_beside_takes_the_place_of_the_rows_once(
    spark: Any, server: Postgres, held: Any, desk: Desk
) -> None:
    held.execute("CREATE TABLE orders (id bigint PRIMARY KEY, name varchar(9), made int DEFAULT 7)")
    held.execute("INSERT INTO orders VALUES (1, 'old'), (2, 'old')")
    held.execute("CREATE VIEW seen AS SELECT id, name, made FROM orders")
    out = at(server, key=["id"])
    side = Candidate("flow", "sink", "g2-abc", desk.batch().context)
    assert out.candidate_effect(side).startswith("orders__g2_abc is filled")
    for number in (0, 1):
        rows = spark.sql(f"SELECT * FROM VALUES ({2 + number}L, 'new') AS t(id, name)")
        target = out.candidate_sink(side)
        assert target is not None
        target.write_batch(rows, desk.batch(number, generation="g2-abc"))
    assert rows_of(held, "SELECT * FROM seen ORDER BY 1") == [(1, "old", 7), (2, "old", 7)]
    out.publish(side, spark)
    held.execute("INSERT INTO orders VALUES (9, 'later')")
    out.publish(side, spark)
    assert rows_of(held, "SELECT * FROM seen ORDER BY 1") == [(2, "new", 7), (3, "new", 7), (9, "later", 7)]
    for _twice in range(2):
        out.drop_candidate(side)
    assert rows_of(held, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'orders%'") == [("orders",)]


@pytest.mark.service
def test_a_table_whose_rows_may_not_be_deleted_is_not_built_beside(server: Postgres, held: Any, desk: Desk) -> None:
    held.execute("CREATE TABLE orders (id bigint)")
    held.execute("DROP ROLE IF EXISTS clerk; CREATE ROLE clerk LOGIN PASSWORD 'x'")
    held.execute("GRANT USAGE, CREATE ON SCHEMA public TO clerk; GRANT INSERT, SELECT ON orders TO clerk")
    out = at(server, username="clerk", password="x")
    side = Candidate("flow", "sink", "g2-abc", desk.batch().context)
    with pytest.raises(ProjectError, match="DELETE ON orders"):
        out.candidate_effect(side)


@pytest.mark.spark
@pytest.mark.service
def test_a_view_is_held_by_its_key(spark: Any, server: Postgres, held: Any, desk: Desk) -> None:
    out = at(server, create=True).of_view(KEY)
    live(spark, lambda: out, desk.batch, lambda: rows_of(held))
    assert rows_of(held, "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'orders'::regclass") == [
        ("PRIMARY KEY (region, id)",)
    ]
    assert rows_of(held, "SELECT generation, batch_id FROM headrace_marks") == [("g1", len(LIFE) - 1)]
    before = rows_of(held)
    unknown = frame(spark, [(Op.DELETE, LIFE[1][0][1], None), (Op.INSERT, (None, 1, None, None), None)])
    with pytest.raises(Exception, match="sink-row-refused"):
        out.write_changes(unknown, KEY, desk.batch(9))
    assert rows_of(held) == before, "a batch is there whole or not at all"
    for number, generation in ((0, "g2"), (1, "g2"), (1, "g2")):
        out.write_changes(frame(spark, LIFE[number]), KEY, desk.batch(number, generation))
        assert set(rows_of(held)) == after(number), "a new generation has only its own rows"
    out.write_changes(frame(spark, LIFE[2]), KEY, desk.batch(sink="other"))
    assert set(rows_of(held)) == after(2), "what others wrote is not replaced"
    held.execute("DROP ROLE IF EXISTS clerk; CREATE ROLE clerk LOGIN; GRANT ALL ON SCHEMA public TO clerk")
    held.execute("GRANT INSERT, SELECT, UPDATE ON orders TO clerk")
    clerk = sink(url=f"postgresql://{server.address}/postgres", username="clerk")
    with pytest.raises(ProjectError, match="DELETE ON orders"):
        clerk.of_view(KEY).check(HERE)
    held.execute("DROP OWNED BY clerk")


@pytest.mark.service
def trial(request: pytest.FixtureRequest, folder: Path) -> Trial:
    server = running(request, Postgres())

    def notes() -> list[str]:
        with psycopg.connect(server.env["POSTGRES_URL"]) as connection:
            return [note for (note,) in rows_of(connection, "SELECT note FROM orders")]

    return Trial(lambda: at(server, create=True, key=list(KEY)), notes)
