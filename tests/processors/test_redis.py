from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from pydantic import ValidationError
from tests.processors.conftest import StepDesk

from headrace.core.errors import ProjectError
from headrace.processors.redis import RedisEnricher as Step
from headrace.testing.services import Redis

NAMES = {"name": "$.name", "n": {"path": "$.stats.n", "type": "int"}}


@pytest.fixture
def database(redis_server: Redis) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.env["REDIS_URL"]) as client:
        client.flushall()
        client.set("user:1", '{"name": "Ada", "stats": {"n": 3}}')
        client.set("user:2", "no json")
        client.set("user:5", '{"name": "' + "x" * 2000 + '"}')
        client.hset("hash:1", mapping={"name": "Ada", "n": "3", "raw": b"\xff\xfe"})
        client.set("text:1", "hello")
        yield client


def step(server: Redis, **options: Any) -> Step:
    given = {"url": server.env["REDIS_URL"], "key": "user:{id}", "columns": NAMES, "backoff": "1ms", **options}
    return Step.model_validate(given)


@pytest.mark.service
def test_json_by_path(redis_server: Redis, database: Any, desk: StepDesk) -> None:
    rows = desk.run(step(redis_server, max_response=1000), {"id": [1, 2, 3, None, 1, 5]})
    assert [(row["id"], row["name"], row["n"]) for row in rows] == [
        (1, "Ada", 3), (3, None, None), (None, None, None), (1, "Ada", 3)
    ]  # fmt: skip
    assert sorted(desk.reasons) == ["bad-answer", "response-too-large"]
    assert (desk.counts["calls"], desk.counts["failures_404"]) == (1, 1)
    step(redis_server).check(desk.context)


@pytest.mark.service
def test_hashes_by_field_and_texts_whole(redis_server: Redis, database: Any, desk: StepDesk) -> None:
    columns = {"name": "name", "n": {"path": "n", "type": "int"}, "raw": {"path": "raw", "type": "binary"}, "x": "x"}
    hashes = step(redis_server, key="hash:{id}", holds="hash", columns=columns)
    assert desk.run(hashes, {"id": ["1"]}) == [{"id": "1", "name": "Ada", "n": 3, "raw": b"\xff\xfe", "x": None}]
    texts = step(redis_server, key="text:{id}", holds="text", columns={"said": "$"})
    assert desk.run(texts, {"id": ["1"]}) == [{"id": "1", "said": "hello"}]
    database.sadd("set:1", "b", "a")
    sets = step(redis_server, key="set:{id}", holds="set", columns={"all": {"path": "$", "type": "array<string>"}})
    assert desk.run(sets, {"id": ["1", "2"]}) == [{"id": "1", "all": ["a", "b"]}, {"id": "2", "all": None}]
    assert desk.run(step(redis_server, key="hash:{id}"), {"id": ["1"]}) == []
    assert desk.reasons == ["wrong-type"]


@pytest.mark.service
def test_whole_answers(redis_server: Redis, database: Any, desk: StepDesk) -> None:
    database.hset("whole:1", mapping={"name": "A\tda", "spec": '{"os": "9"}'})
    database.set("whole:2", '{"n": 1.50}')
    whole = {"answer": "$"}
    hashes = desk.run(step(redis_server, key="whole:{id}", holds="hash", columns=whole), {"id": ["1", "3", None]})
    assert [row["answer"] for row in hashes] == [r'{"name":"A\tda","spec":"{\"os\": \"9\"}"}', None, None]
    documents = desk.run(step(redis_server, key="user:{id}", columns=whole), {"id": [1, 3]})
    assert [row["answer"] for row in documents] == ['{"name":"Ada","stats":{"n":3}}', None]
    texts = desk.run(step(redis_server, key="whole:{id}", holds="text", columns=whole), {"id": ["2", "3"]})
    assert [row["answer"] for row in texts] == ['{"n": 1.50}', None]
    # bytes that are no text cannot be part of JSON
    assert desk.run(step(redis_server, key="hash:{id}", holds="hash", columns=whole), {"id": ["1"]}) == []
    assert desk.reasons == ["bad-answer"]


@pytest.mark.service
def test_a_server_that_is_away_and_comes_back(redis_server: Redis, database: Any, desk: StepDesk) -> None:
    asking = step(redis_server)
    assert len(desk.run(asking, {"id": [1]})) == 1
    database.client_kill_filter(_type="normal", skipme=True)
    assert desk.run(asking, {"id": [1]})[0]["name"] == "Ada"
    gone = step(redis_server, url="redis://127.0.0.1:1/0", retries=0, give_up="100ms", on_error="null")
    for failing in (lambda: gone.check(desk.context), lambda: desk.run(gone, {"id": [1]})):
        with pytest.raises(ProjectError) as caught:
            failing()
        assert caught.value.code == "service-away"


@pytest.mark.parametrize(
    "options",
    [
        {"url": "http://a"},
        {"key": "a{"},
        {"holds": "text"},
        {"holds": "set"},
        {"username": "a"},
        {"columns": {"a": "name"}},
        {"tls": {"certificate": "a", "key": "b"}},
    ],
)
def test_options_that_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Step.model_validate({"url": "redis://a:1/0", "key": "a:{b}", "columns": NAMES, **options})
