from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import redis as client
from pydantic import ValidationError
from tests.conftest import unavailable
from tests.sinks.changes import Row, live
from tests.sinks.conftest import Desk

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.schema import from_ddl
from headrace.sinks.redis import RedisSink
from headrace.testing.services import Redis

HERE = Context(Path("/project"), "state")


def sink(**options: Any) -> RedisSink:
    given = {"type": "redis", "url": "redis://127.0.0.1:1/0", "key": "o:{id}", "retry_for": "100ms"}
    return RedisSink.model_validate(given | options)


def code_of(call: Any) -> str:
    with pytest.raises(ProjectError) as caught:
        call()
    return caught.value.code


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
