from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from pydantic import ValidationError
from tests.conftest import unavailable
from tests.errors import code_of
from tests.sinks.conftest import Desk, Stage
from tests.sinks.trials import Trial, running

from headrace.core.capabilities import Candidate, Rewind
from headrace.core.context import Context
from headrace.core.schema import from_ddl
from headrace.sinks._refused import Report
from headrace.sinks.clickhouse import ClickHouseSink
from headrace.sinks.clickhouse.insert import ClickHouseClient, InsertWrite
from headrace.sinks.clickhouse.table import create_statement
from headrace.testing.services import ClickHouse
from headrace.testing.services.probe import http_get

HERE = Context(Path("/project"), "state")


def sink(**options: Any) -> ClickHouseSink:
    given = {"type": "clickhouse", "url": "http://127.0.0.1:1", "table": "orders", "retry_for": "100ms"}
    return ClickHouseSink.model_validate(given | options)


def test_options_that_cannot_be() -> None:
    for options in ({"url": "127.0.0.1:8123"}, {"sequence": "at"}, {"username": "me"}, {"table": ""}):
        with pytest.raises(ValidationError):
            sink(**options)
    out = sink(database="shop", password="secret-word", username="me")
    assert (out.target, out.label) == ("shop.orders", "clickhouse shop.orders at 127.0.0.1:1")
    assert "secret-word" not in repr(out)


def test_delivery_depends_on_the_key() -> None:
    rewind, candidate = Rewind("f", "s", HERE, None), Candidate("f", "s", "g2", HERE)
    keyed = sink(key=["id"])
    assert (sink().guarantee, keyed.guarantee) == ("at_least_once", "idempotent")
    assert "same key" in keyed.rewind_effect(rewind, replace=False)
    assert "cannot be removed" in sink().rewind_effect(rewind, replace=True)
    assert "stay" in sink().candidate_effect(candidate)
    assert code_of(lambda: keyed.candidate_effect(candidate)) == "beside-unsupported"


def test_columns_must_exist() -> None:
    out = sink(key=["id"], sequence="at")
    out.check_rows(HERE, ["id", "at"], "update", None)
    for columns in (["at"], ["id"]):
        assert code_of(lambda columns=columns: out.check_rows(HERE, columns, "append", None)) == "unknown-column"
    assert code_of(lambda: sink().check_rows(HERE, ["id"], "update", None)) == "sink-needs-key"


def test_a_new_table_has_the_columns_of_the_rows() -> None:
    columns = from_ddl(
        "id bigint, at timestamp, ok boolean, n decimal(9,2), tags array<string>, who struct<a: int>, b binary, d date"
    )
    statement = create_statement("shop", "or`ders", columns, ["id"], "at", fractions=True)
    assert statement == (
        "CREATE TABLE IF NOT EXISTS `shop`.`or``ders` (`id` Int64, `at` DateTime64(6, 'UTC'), `ok` Nullable(UInt8), "
        "`n` Nullable(Decimal(9, 2)), `tags` Array(Nullable(String)), `who` Nullable(String), `b` Nullable(String), "
        "`d` Nullable(Date)) ENGINE = ReplacingMergeTree(`at`) ORDER BY (`id`)"
    )
    plain = create_statement("shop", "orders", from_ddl("at timestamp"), [], None, fractions=False)
    assert plain.endswith("(`at` Nullable(DateTime('UTC'))) ENGINE = MergeTree ORDER BY tuple()")


def run(stage: Stage, desk: Desk, *bodies: bytes, identity: str | None = None) -> dict[str, int]:
    out = sink(url=stage.url)
    client = ClickHouseClient(**vars(out.client(out.label, out.url, HERE)))
    write = InsertWrite(
        client, "/?query=INSERT", identity, 8, 1_000_000, Report.of(desk.batch(), out.label, "dead_letter")
    )
    batch = pa.RecordBatch.from_arrays([pa.array(bodies), pa.array([True] * len(bodies))], names=["body", "keyed"])
    outcomes = [row for summary in write(iter([batch])) for row in summary.to_pylist()]
    return {row["outcome"]: row["rows"] for row in outcomes if row["outcome"] != "bytes"}


def test_a_row_at_fault_is_found_by_the_code_of_the_server(stage: Stage, desk: Desk) -> None:
    """ClickHouse answers 500 to a row that it cannot parse, which must not be taken for a server in trouble."""
    bad = 500, b"Code: 27, e.displayText() = DB::Exception: Cannot parse input", {}
    stage.answer = lambda heard: bad if b"bad" in heard.body else (200, b"", {})
    assert run(stage, desk, *(b'{"n":%d}' % n for n in range(9)), b'{"n":"bad"}') == {"written": 9, "refused": 1}
    (letter,) = desk.letters()
    assert (letter["value"], letter["reason"]) == (b'{"n":"bad"}', "refused")
    assert "Cannot parse input" in letter["detail"]


@pytest.mark.parametrize(
    ("status", "said", "code"),
    [
        (500, b"Code: 252, too many parts", "service-away"),
        (500, b"Code: 241, memory limit exceeded", "service-away"),
        (503, b"a proxy is in trouble", "service-away"),
        (500, b"Code: 164, readonly", "sink-refused"),
        (404, b"Code: 60, no such table", "sink-missing"),
        (401, b"Code: 193, wrong password", "service-authentication"),
    ],
)
def test_errors_of_the_server(stage: Stage, desk: Desk, status: int, said: bytes, code: str) -> None:
    stage.answer = lambda heard: (status, said, {})
    assert code_of(lambda: run(stage, desk, b"{}")) == code
    assert desk.letters() == []


def test_a_repeated_request_has_the_same_token_and_every_other_another(stage: Stage, desk: Desk) -> None:
    def tokens(identity: str, *bodies: bytes) -> list[str]:
        stage.heard.clear()
        run(stage, desk, *bodies, identity=identity)
        return [heard.path.partition("insert_deduplication_token=")[2] for heard in stage.heard]

    rows = [b'{"n":%d}' % n for n in range(9)]
    first = tokens("f|g1|s|0", *rows)
    assert (len(set(first)), first) == (2, tokens("f|g1|s|0", *rows))
    assert not {*first} & {*tokens("f|g1|s|1", *rows), *tokens("f|g1|s|0", *reversed(rows))}
    run(stage, desk, *rows)
    assert "token" not in stage.heard[-1].path


@pytest.fixture(scope="module")
def clickhouse() -> Iterator[ClickHouse]:
    problem = ClickHouse.problem()
    if problem is not None:
        unavailable(problem)
    with ClickHouse(password="se<cret") as server:
        yield server


def at(server: ClickHouse, **options: Any) -> ClickHouseSink:
    return sink(url=f"http://{server.address}", username="default", password=server.password, **options)


def ask(server: ClickHouse, query: str) -> list[dict[str, Any]]:
    path = f"/?user=default&password={quote(server.password)}&query={quote(query + ' FORMAT JSON')}"
    answer = http_get(server.port, path, patience=60)
    assert answer is not None
    assert answer[0] == 200, answer[1]
    rows: list[dict[str, Any]] = json.loads(answer[1])["data"]
    return rows


def execute(server: ClickHouse, statement: str) -> None:
    out = at(server)
    answer = out.client(out.label, out.url, HERE).send("POST", "/", statement.encode())
    assert answer.ok, answer.text


@pytest.mark.service
def test_check_says_what_is_wrong(clickhouse: ClickHouse) -> None:
    missing = at(clickhouse, table="nowhere")
    assert code_of(lambda: missing.check(HERE)) == "sink-missing"
    assert code_of(lambda: at(clickhouse, database="nowhere").check(HERE)) == "sink-missing"
    at(clickhouse, table="nowhere", create=True).check(HERE)
    wrong = missing.model_copy(update={"password": None, "username": None})
    assert code_of(lambda: wrong.check(HERE)) == "service-authentication"
    assert code_of(lambda: sink().check(HERE)) == "service-away"


@pytest.mark.service
def test_a_key_needs_a_table_that_replaces_rows(clickhouse: ClickHouse) -> None:
    execute(clickhouse, "CREATE TABLE plain (id Int64, n Int64) ENGINE = MergeTree ORDER BY id")
    execute(clickhouse, "CREATE TABLE pairs (id Int64, n Int64) ENGINE = ReplacingMergeTree ORDER BY (id, n)")
    at(clickhouse, table="plain").check(HERE)
    at(clickhouse, table="pairs", key=["id", "n"]).check(HERE)
    for name in ("plain", "pairs"):
        assert code_of(lambda name=name: at(clickhouse, table=name, key=["id"]).check(HERE)) == "sink-needs-key"
    columns = from_ddl("id bigint, m bigint")
    out = at(clickhouse, table="plain")
    assert code_of(lambda: out.check_rows(HERE, columns.names, "append", columns)) == "unknown-column"


ALL_TYPES = """
SELECT cast(1 AS bigint) AS id, true AS flag, cast(-7 AS smallint) AS small, 1.5D AS ratio,
  cast('NaN' AS double) AS nan, cast(-0.05 AS decimal(20,2)) AS amount, 'é"\\n😀' AS note,
  date'2026-01-31' AS day, X'00FF' AS raw, timestamp'2026-01-31 12:00:00.123456 UTC' AS at,
  array('x', null) AS tags, cast(null AS array<int>) AS none, named_struct('a', 1, 'b', array('y')) AS who,
  map('k', 2.5D) AS marks, cast(null AS string) AS nothing
"""


@pytest.mark.spark
@pytest.mark.service
def test_rows_of_all_types_arrive(spark: Any, clickhouse: ClickHouse, desk: Desk) -> None:
    out = at(clickhouse, table="types", create=True)
    out.write_batch(spark.sql(ALL_TYPES), desk.batch())
    columns = "id, flag, small, ratio, isNaN(nan) AS nan, toString(amount) AS amount, note, day, raw, at, tags, none"
    (row,) = ask(clickhouse, f"SELECT {columns}, who, marks, nothing FROM types")
    assert row == {
        "id": "1",
        "flag": 1,
        "small": -7,
        "ratio": 1.5,
        "nan": 1,
        "amount": "-0.05",
        "note": 'é"\n😀',
        "day": "2026-01-31",
        "raw": "AP8=",
        "at": "2026-01-31 12:00:00",
        "tags": ["x", None],
        "none": [],
        "who": '{"a":1,"b":["y"]}',
        "marks": '{"k":2.5}',
        "nothing": None,
    }
    assert desk.letters() == []


@pytest.mark.spark
@pytest.mark.service
def test_a_repeated_batch_leaves_each_row_once(spark: Any, clickhouse: ClickHouse, desk: Desk) -> None:
    out = at(clickhouse, table="totals", key=["region", "id"], sequence="version", create=True, batch_size=2)
    out.check(HERE)
    first = [("eu", 1, 1, "a"), ("eu", 1, 3, "c"), ("eu", 1, 2, "b"), ("us", 1, 1, "x"), ("us", 2, 1, "y")]
    shape = "region string, id int, version bigint, note string"
    for _ in range(3):
        out.write_batch(spark.createDataFrame(first, shape).repartition(3), desk.batch(0))
    out.write_batch(spark.createDataFrame([("us", 1, 2, "z"), ("eu", 1, 2, "late")], shape), desk.batch(1))
    found = ask(clickhouse, "SELECT * FROM totals FINAL ORDER BY region, id")
    assert [(row["region"], row["id"], row["note"]) for row in found] == [
        ("eu", 1, "c"),
        ("us", 1, "z"),
        ("us", 2, "y"),
    ]


@pytest.mark.spark
@pytest.mark.service
def test_refused_rows_are_dead_letters(spark: Any, clickhouse: ClickHouse, desk: Desk) -> None:
    execute(clickhouse, "CREATE TABLE typed (id Int64, n Decimal(9, 2)) ENGINE = ReplacingMergeTree ORDER BY id")
    rows = spark.sql("SELECT nullif(id, 3) AS id, if(id = 5, 1e30BD, cast(id AS decimal(38,2))) AS n FROM range(10)")
    out = at(clickhouse, table="typed", key=["id"])
    for _ in range(2):
        out.write_batch(rows, desk.batch())
    assert {(letter["reason"], json.loads(letter["value"])["id"]) for letter in desk.letters()} == {
        ("no-key", None),
        ("refused", 5),
    }
    found = ask(clickhouse, "SELECT id FROM typed FINAL ORDER BY id")
    assert [int(row["id"]) for row in found] == [0, 1, 2, 4, 6, 7, 8, 9]
    strict = at(clickhouse, table="typed", key=["id"], on_error="fail")
    with pytest.raises(Exception, match="refused a row"):
        strict.write_batch(rows, desk.batch(1))


@pytest.mark.spark
@pytest.mark.service
def test_a_server_that_is_down_fails_the_batch(spark: Any, clickhouse: ClickHouse, desk: Desk) -> None:
    rows = spark.range(3)
    assert code_of(lambda: sink().write_batch(rows, desk.batch())) == "service-away"
    assert code_of(lambda: at(clickhouse, table="nowhere").write_batch(rows, desk.batch())) == "sink-missing"


@pytest.mark.service
def trial(request: pytest.FixtureRequest, folder: Path) -> Trial:
    server = running(request, ClickHouse())
    return Trial(
        lambda: at(server, create=True, key=["region", "id"]),
        lambda: [row["note"] for row in ask(server, "SELECT note FROM orders FINAL")],
    )
