"""Denormalisation with the lookups of profile kafka: the same outcome from Redis as from files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import redis
from tests.apps.telemetry.application import Application
from tests.apps.telemetry.test_denormalise import EVENTS, LOOKUPS, cached
from tests.conftest import unavailable

from headrace.project.loader import load
from headrace.testing.harness import ProjectHarness
from headrace.testing.services import Redis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CACHES = {"devices": 2, "users": 12, "dialcodes": 6, "contents": 5}


@pytest.fixture
def caches() -> Iterator[dict[str, str]]:
    """The addresses of the four caches, filled."""
    problem = Redis.problem()
    if problem is not None:
        unavailable(problem)
    with Redis() as server:
        found = {name: server.env["REDIS_URL"].rpartition("/")[0] + f"/{number}" for name, number in CACHES.items()}
        for name, url in found.items():
            with redis.Redis.from_url(url) as client:
                _fill(client, name)
        yield found


def _fill(client: redis.Redis, name: str) -> None:
    for key, file in LOOKUPS[name].items():
        if name in ("devices", "users"):
            client.hset("user:" * (name == "users") + key, mapping=json.loads(cached(file)))
        else:
            client.set(key, cached(file))


@pytest.mark.spark
@pytest.mark.service
def test_the_same_from_redis(
    spark: SparkSession, caches: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("app")
    names = {name: f"{name.removesuffix('s')}_cache" for name in CACHES}
    app = Application(folder, ignore_months=4, **{names[name]: url for name, url in caches.items()})
    with ProjectHarness(load(folder, profile="kafka", overrides=app.overrides), spark) as harness:
        harness.feed("telemetry_unique_primary", [{"value": text} for text in EVENTS])
        harness.run("denormalise")
        assert harness.dead_letters() == []
        rows = harness.rows("denormalise")
    taken = [json.loads(row["value"]) for row in rows if row["topic"] == "dev.telemetry.denorm"]
    assert len(taken) == 13
    flags = [flag for one in taken for flag in one["flags"].items()]
    hits = {
        name: flags.count((f"{name}_denorm", True)) for name in ("device", "user", "dialcode", "content", "coll", "l2")
    }
    assert hits == {"device": 8, "user": 5, "dialcode": 2, "content": 6, "coll": 3, "l2": 1}
    (third,) = [one for one in taken if one["mid"] == "mid3"]
    assert third["devicedata"]["devicespec"]["edisk"] == "25.42"
    assert third["collectiondata"]["lastupdatedon"] == 1489169400448
