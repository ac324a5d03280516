from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from itertools import islice
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import redis as client
from pydantic import ValidationError
from tests.conftest import unavailable
from tests.errors import code_of
from tests.sinks.changes import Row, live
from tests.sinks.conftest import Desk
from tests.sinks.trials import Trial, running

from headrace.core.context import Context
from headrace.core.schema import from_ddl
from headrace.sinks.redis import RedisSink
from headrace.sinks.redis.entries import RedisEntry
from headrace.sinks.redis.merge import Merging, fields_of
from headrace.testing.services import Redis

HERE = Context(Path("/project"), "state")


def sink(**options: Any) -> RedisSink:
    given = {"type": "redis", "url": "redis://127.0.0.1:1/0", "key": "o:{id}", "retry_for": "100ms"}
    return RedisSink.model_validate(given | options)


def test_options_that_cannot_be() -> None:
    for options in (
        {"url": "127.0.0.1:6379"},
        {"url": "redis://me:word@x"},
        {"url": "redis://x/mill"},
        {"key": "same"},
        {"key": "{a"},
        {"value": "column"},
        {"column": "a"},
        {"username": "me"},
    ):
        with pytest.raises(ValidationError):
            sink(**options)


def test_columns_must_exist() -> None:
    out = sink(value="column", column="v", sequence="at", delete="gone")
    out.check_rows(HERE, ["id", "v", "at", "gone"], "update", from_ddl("id int, v string, at date, gone boolean"))
    for columns in (["v", "at", "gone"], ["id", "at", "gone"], ["id", "v", "gone"], ["id", "v", "at"]):
        assert code_of(lambda columns=columns: out.check_rows(HERE, columns, "append", None)) == "unknown-column"
    wrong = from_ddl("id int, v string, at date, gone int")
    assert code_of(lambda: out.check_rows(HERE, wrong.names, "append", wrong)) == "sink-column-type"


def test_a_server_that_is_away() -> None:
    assert code_of(lambda: sink().check(HERE)) == "service-away"
    assert "word" not in repr(sink(password="word").client(HERE))


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    problem = Redis.problem()
    if problem is not None:
        unavailable(problem)
    with Redis() as running:
        yield running


@pytest.fixture
def held(server: Redis) -> Iterator[Any]:
    with client.Redis(port=server.port, decode_responses=True) as connection:
        connection.flushall()
        yield connection


@pytest.mark.service
def test_who_may_write(server: Redis, held: Any) -> None:
    url = f"redis://{server.address}/0"
    sink(url=url).check(HERE)
    held.config_set("requirepass", "wonder")
    try:
        assert code_of(lambda: sink(url=url).check(HERE)) == "service-authentication"
        assert code_of(lambda: sink(url=url, password="wrong").check(HERE)) == "service-authentication"
        sink(url=url, password="wonder").check(HERE)
    finally:
        held.config_set("requirepass", "")


@pytest.mark.spark
@pytest.mark.service
def test_the_last_row_of_a_key_is_what_it_holds(spark: Any, server: Redis, held: Any, desk: Desk) -> None:
    url = f"redis://{server.address}/0"
    rows = spark.sql(
        "SELECT * FROM VALUES (1, 'a', 5, false), (1, 'b', 9, false), (1, 'c', 7, false), (2, 'd', 1, false), "
        "(2, 'e', 2, true), (3, 'f', NULL, NULL), (NULL, 'g', 1, false) AS t(id, name, v, gone)"
    )
    held.set("o:2", "old")
    batch = desk.batch()
    out = sink(url=url, sequence="v", delete="gone", ttl="1h")
    for _ in range(2):
        out.write_batch(rows.repartition(2), batch)
    assert {key: json.loads(held.get(key)) for key in held.scan_iter()} == {
        "o:1": {"id": 1, "name": "b", "v": 9},
        "o:3": {"id": 3, "name": "f", "v": None},
    }
    assert 3_000 < held.ttl("o:1") <= 3_600
    (letter,) = desk.letters()
    assert (letter["reason"], json.loads(letter["value"])["name"]) == ("no-key", "g")
    in_order = sink(url=url, key="in order {id}")
    in_order.write_batch(rows.coalesce(1), desk.batch(1))
    assert json.loads(held.get("in order 1"))["name"] == "c"


@pytest.mark.spark
@pytest.mark.service
def test_hashes_and_columns(spark: Any, server: Redis, held: Any, desk: Desk) -> None:
    url = f"redis://{server.address}/0"
    held.hset("o:1", mapping={"stale": "field"})
    held.set("o:2", "of another type")
    rows = spark.sql(
        "SELECT * FROM VALUES (1, true, 1.5D, array(1, 2), X'ff00', NULL), (2, NULL, NULL, NULL, NULL, 'x') "
        "AS t(id, b, d, l, raw, s)"
    )
    sink(url=url, value="hash").write_batch(rows.drop("raw"), desk.batch())
    assert held.hgetall("o:1") == {"id": "1", "b": "true", "d": "1.5", "l": "[1,2]"}
    assert held.hgetall("o:2") == {"id": "2", "s": "x"}
    held.set("raw:2", "old")
    sink(url=url, key="raw:{id}", value="column", column="raw").write_batch(rows, desk.batch())
    with client.Redis(port=server.port) as plain:
        assert (plain.get("raw:1"), plain.get("raw:2")) == (b"\xff\x00", None)
    sink(url=url, key="n:{id}", value="column", column="id").write_batch(rows, desk.batch())
    assert held.mget("n:1", "n:2") == ["1", "2"]


@pytest.mark.spark
@pytest.mark.service
def test_a_server_that_stops_for_a_while_is_waited_for(spark: Any, server: Redis, held: Any, desk: Desk) -> None:
    out = sink(url=f"redis://{server.address}/0", retry_for="20s", timeout="500ms", batch_size=50)
    server.pause()
    Timer(2, server.resume).start()
    batch = desk.batch()
    out.write_batch(spark.range(200), batch)
    assert (held.dbsize(), batch.tally.counts()) == (200, {("flow", "sink", "written"): 200})


@pytest.mark.spark
@pytest.mark.service
@pytest.mark.parametrize("value", ["json", "hash"])
def test_a_view_is_held_by_its_key(spark: Any, server: Redis, held: Any, desk: Desk, value: str) -> None:
    out = sink(url=f"redis://{server.address}/0", key="v:{region}:{id}", value=value)

    def rows() -> list[Row]:
        found = (held.hgetall(key) if value == "hash" else json.loads(held.get(key)) for key in held.scan_iter())
        return [(row["region"], int(row["id"]), _amount(row.get("amount")), row.get("note")) for row in found]

    live(spark, lambda: out, desk.batch, rows)


def _amount(found: Any) -> Decimal | None:
    return None if found is None else Decimal(str(found))


def test_changes_are_about_fields() -> None:
    for options in (
        {"value": "column", "column": "v", "merge": True},
        {"column": "v"},
        {"nulls": "delete"},
        {"keep": ["v"]},
        {"value": "hash", "unset": ["0"]},
    ):
        with pytest.raises(ValidationError):
            sink(**options)
    out = sink(value="hash", column="v", merge=True)
    out.check_rows(HERE, ["id", "v"], "append", from_ddl("id int, v map<string,string>"))
    wrong = from_ddl("id int, v string")
    assert code_of(lambda: out.check_rows(HERE, wrong.names, "append", wrong)) == "sink-column-type"
    assert code_of(lambda: out.of_view(["id"])) == "sink-view-option"


def test_fields_of_documents_keep_their_text() -> None:
    document = b'{"n": 12345678901234567890.50, "none": [], "x": null, "s": "\\u00e9"}'
    assert fields_of(document) == {"n": b"12345678901234567890.50", "none": b"[]", "x": None, "s": b'"\\u00e9"'}
    for text in (b"[1]", b"{", b'"x"'):
        with pytest.raises(ValueError, match="not a JSON object"):
            fields_of(text)


CHANGES = "(1, map('seen', 'b', 'town', 'X'), 2), (1, map('seen', 'a', 'state', NULL), 1), (2, map('seen', 'c'), 1)"


@pytest.mark.spark
@pytest.mark.service
def test_hashes_are_changed_field_by_field(spark: Any, server: Redis, held: Any, desk: Desk) -> None:
    held.hset("o:1", mapping={"seen": "0", "town": "W", "state": "S", "other": "kept"})
    rows = spark.sql(f"SELECT * FROM VALUES {CHANGES} AS t(id, fields, at)").repartition(2)
    options = {"value": "hash", "column": "fields", "merge": True, "sequence": "at", "nulls": "delete", "ttl": "1h"}
    out = sink(url=f"redis://{server.address}/0", keep=["seen"], unset=["0"], **options)
    for _ in range(2):
        out.write_batch(rows, desk.batch())
    assert held.hgetall("o:1") == {"seen": "a", "town": "X", "other": "kept"}
    assert held.hgetall("o:2") == {"seen": "c"}
    assert held.ttl("o:1") > 3_000
    columns = spark.sql("SELECT 1 AS id, CAST(NULL AS STRING) AS town, 'later' AS seen, 7 AS n")
    out = sink(url=f"redis://{server.address}/0", value="hash", merge=True, keep=["seen"])
    out.write_batch(columns, desk.batch(1))
    assert held.hgetall("o:1") == {"seen": "a", "town": "X", "other": "kept", "id": "1", "n": "7"}


@pytest.mark.spark
@pytest.mark.service
def test_documents_are_changed_field_by_field(spark: Any, server: Redis, held: Any, desk: Desk) -> None:
    held.mset(
        {"o:1": '{"n": 12345678901234567890, "none": [], "gone": 1, "first": null}', "o:3": "no JSON", "o:9": "{}"}
    )
    rows = spark.sql(
        """SELECT * FROM VALUES (1, '{"gone": null, "a": 1.50, "first": 1}', 1, false),
        (1, '{"a": {"deep": []}, "first": 2}', 2, false), (2, '{"b": null, "c": "x"}', 1, false),
        (3, '{"a": 1}', 1, false), (4, '[]', 1, false), (9, '{"a": 1}', 1, true) AS t(id, patch, at, dead)"""
    )
    out = sink(
        url=f"redis://{server.address}/0",
        column="patch",
        merge=True,
        sequence="at",
        delete="dead",
        nulls="delete",
        keep=["first"],
    )
    for _ in range(2):
        out.write_batch(rows.repartition(2), desk.batch())
    assert held.get("o:1") == '{"n":12345678901234567890,"none":[],"first":1,"a":{"deep": []}}'
    assert held.mget("o:2", "o:3", "o:4", "o:9") == ['{"c":"x"}', "no JSON", None, None]
    assert {(letter["reason"], letter["value"]) for letter in desk.letters()} == {
        ("not-an-object", b'{"a":1}'),
        ("not-an-object", b"[]"),
    }


@pytest.mark.service
def test_a_document_that_somebody_else_changes_meanwhile(server: Redis, held: Any) -> None:
    merging = Merging(json=True, delete_nulls=False, keep=frozenset(), unset=(), ttl_ms=None)
    entry, change, others = RedisEntry(0, "o:1", {"mine": b"1"}), merging._change_documents, iter(range(2))

    def meddled(pipe: Any) -> Any:
        told = change(pipe, ["o:1"], [entry])
        for number in islice(others, 1):
            held.set("o:1", f'{{"other{number}": 1}}')
        return told

    with client.Redis(port=server.port) as connection:
        connection.transaction(meddled, "o:1", value_from_callable=True)
    assert json.loads(held.get("o:1")) == {"other1": 1, "mine": 1}


@pytest.mark.service
def trial(request: pytest.FixtureRequest, folder: Path) -> Trial:
    server = running(request, Redis())

    def notes() -> list[str]:
        with client.Redis(port=server.port, decode_responses=True) as connection:
            return [json.loads(connection.get(key))["note"] for key in connection.scan_iter()]

    return Trial(lambda: sink(url=f"redis://{server.address}/0", key="t:{region}:{id}"), notes)
