"""The telemetry pipeline over Kafka and Redis, its engine killed with -9: every event is accounted for, by its id.

`HEADRACE_FAULTS=full` kills it three times, and sends more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from apps.telemetry.generator import Batch, Generator, lookups
from tests.apps.telemetry.application import Application
from tests.conftest import unavailable
from tests.faults.planting import planted_environment
from tests.faults.scene import SHORT_LIVED, Engine, await_true
from tests.system.conftest import consume, produce

from headrace.testing.services import Redis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.testing.services import Kafka

FULL = os.environ.get("HEADRACE_FAULTS") == "full"
BATCHES = 600 if FULL else 120
OLD = 30 if FULL else 6
"""Batches of half a year ago, whose events are not denormalised."""
FLOWS = ("extract", "redact", "preprocess", "denormalise")
# where each life ends: in the midst of the first batches, with rows written that are not yet committed
DEATHS = (
    ("after_sinks:0:extract", "after_sinks:1:preprocess", "after_sinks:1:denormalise")
    if FULL
    else ("after_sinks:0:preprocess",)
)
INPUTS = ("telemetry.ingest", "telemetry.redact", "telemetry.raw")
OUTCOMES = (
    "telemetry.failed", "telemetry.duplicate", "telemetry.error", "telemetry.audit", "telemetry.cb.audit",
    "telemetry.unique", "telemetry.unique.primary", "telemetry.unique.secondary", "druid.events.log",
    "telemetry.extractor.failed", "telemetry.extractor.duplicate", "telemetry.assess.raw",
    "telemetry.denorm", "druid.events.error",
)  # fmt: skip
CACHES = {"content_cache": 5, "device_cache": 2, "user_cache": 12, "dialcode_cache": 6}
DENORMALISED = {
    "telemetry.unique.primary": "telemetry.denorm",
    "telemetry.unique.secondary": "telemetry.denorm",
    "telemetry.error": "druid.events.error",
}
PATIENCE = 600.0
Topics = Mapping[str, Iterable[Mapping[str, Any]]]


SEED, OLD_SEED, DAY = 7, 8, 86_400_000


def expected(batches: Iterable[Batch]) -> Counter[tuple[str, str]]:
    """How often each id must be in each topic. Items of a SHARE stand for their SHARE."""
    sent = Counter(one for batch in batches for one in batch.sent)
    found: Counter[tuple[str, str]] = Counter()
    for (mid, fate), times in sent.items():
        if fate in ("log", "failed"):
            found["druid.events.log" if fate == "log" else "telemetry.failed", mid] += times
            continue
        found["telemetry.duplicate", mid] += times - 1
        places = {
            "error": ["telemetry.error"],
            "work_order": ["telemetry.cb.audit", "telemetry.unique.primary"],
            "primary": ["telemetry.unique", "telemetry.unique.primary"],
            "secondary": ["telemetry.unique", "telemetry.unique.secondary"],
        }[fate]
        found.update((topic, mid) for topic in places)
        if mid.startswith("AUDIT:"):
            found["telemetry.audit", mid] += 1
        if mid.startswith("SHARE:"):
            found.update({("telemetry.unique", f"{mid}-"): 2, ("telemetry.unique.secondary", f"{mid}-"): 2})
    found.update(("druid.events.log", json.loads(batch.text)["mid"]) for batch in batches)
    return +found


def denormalised(found: Counter[tuple[str, str]]) -> Counter[tuple[str, str]]:
    """The same after denormalisation."""
    made = Counter(found)
    for (topic, mid), times in found.items():
        if topic in DENORMALISED:
            made["telemetry.failed" if not_taken(mid) else DENORMALISED[topic], mid] += times
    return made


def not_taken(mid: str) -> bool:
    """Whether an event is too old to be denormalised, or of a type that is not."""
    eid, seed, *_ = mid.split(":")
    return eid == "INTERRUPT" or int(seed) == OLD_SEED


def generated() -> list[Batch]:
    """Of yesterday, and some of half a year ago."""
    now = int(time.time() * 1000)
    old = Generator(OLD_SEED, repeats=0.05, faults=0.03, start=now - 180 * DAY).batches(OLD)
    return [*old, *Generator(SEED, repeats=0.05, faults=0.03, start=now - DAY).batches(BATCHES)]


def violations(wanted: Counter[tuple[str, str]], topics: Topics) -> list[str]:
    """What is missing, and what is there too often."""
    found = Counter((topic, _name(one["mid"])) for topic, documents in topics.items() for one in documents)
    for topic in ("telemetry.raw", "telemetry.ingest", "telemetry.redact", "telemetry.assess.raw"):
        found = Counter({key: times for key, times in found.items() if key[0] != topic})
    lost = [f"lost: {mid} in {topic}" for topic, mid in (wanted - found).elements()]
    extra = [f"too often: {mid} in {topic}" for topic, mid in (found - wanted).elements()]
    ids = Counter(one["mid"] for one in topics["telemetry.unique"])
    return [*lost, *extra, *(f"one id twice: {mid}" for mid, times in ids.items() if times > 1)]


def _name(mid: str) -> str:
    """The id of an item is that of its SHARE, a dash and a digest."""
    return mid.rpartition("-")[0] + "-" if mid.startswith("SHARE:") and "-" in mid else mid


def made(wanted: Counter[tuple[str, str]]) -> dict[str, list[dict[str, Any]]]:
    """What a pipeline without faults would have written."""
    topics: dict[str, list[dict[str, Any]]] = {topic: [] for topic in OUTCOMES}
    for (topic, mid), times in wanted.items():
        for number in range(times):
            topics[topic].append({"mid": f"{mid}{number}" if mid.endswith("-") else mid})
    return topics


def test_the_checker_finds_what_is_lost_and_what_is_doubled() -> None:
    wanted = denormalised(expected(generated()))
    whole = made(wanted)
    assert violations(wanted, whole) == []
    for topic in (
        "telemetry.failed",
        "telemetry.duplicate",
        "telemetry.unique",
        "telemetry.denorm",
        "druid.events.log",
    ):
        gone = whole[topic][0]
        (told,) = violations(wanted, {**whole, topic: whole[topic][1:]})
        assert told == f"lost: {_name(gone['mid'])} in {topic}"
        doubled = violations(wanted, {**whole, topic: [gone, *whole[topic]]})
        assert doubled[0] == f"too often: {_name(gone['mid'])} in {topic}"


@pytest.fixture
def known() -> Iterator[Redis]:
    """Redis with what is known about contents, devices, users and dial codes."""
    problem = Redis.problem()
    if problem is not None:
        unavailable(problem)
    with Redis() as server:
        for number in CACHES.values():
            with redis.Redis(host="127.0.0.1", port=server.port, db=number).pipeline() as pipe:
                for database, key, value in lookups():
                    if database == number:
                        pipe.set(key, value) if isinstance(value, str) else pipe.hset(key, mapping=dict(value))
                pipe.execute()
        yield server


@pytest.mark.spark
@pytest.mark.service
def test_every_event_is_accounted_for(
    tmp_path: Path, kafka: Kafka, known: Redis, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = f"t{uuid.uuid4().hex[:8]}"
    for topic in (*INPUTS, *OUTCOMES):
        kafka.create_topic(f"{env}.{topic}", 2)
    monkeypatch.setenv("KAFKA_BROKERS", kafka.address)
    caches = {name: f"redis://{known.address}/{number}" for name, number in CACHES.items()}
    app = Application(tmp_path, "kafka", env=env, **caches)
    conf = json.dumps({"spark.local.dir": str(tmp_path / "local"), **SHORT_LIVED})
    app.overrides += [f"spark.conf={conf}", f"flows.extract.max_records={BATCHES // 3}", "spark.master=local[2]"]
    app.overrides += [
        "flows.preprocess.max_records=1000",
        "flows.redact.max_records=60",
        "flows.denormalise.max_records=1500",
    ]
    batches = generated()
    produce(kafka, f"{env}.telemetry.ingest", [batch.text.encode() for batch in batches])
    lives: list[Engine] = []
    try:
        for death in DEATHS:
            lives.append(start(app, FLOWS, death, len(lives)))
            assert await_true(lives[-1].died, PATIENCE), lives[-1].tail()
            assert lives[-1].process.returncode == -9, lives[-1].tail()
        app.run(spark, *FLOWS)
    finally:
        for engine in lives:
            if engine.process.poll() is None:
                engine.kill()
    topics = {topic: [json.loads(one.value()) for one in consume(kafka, f"{env}.{topic}")] for topic in OUTCOMES}
    counts = {topic: len(found) for topic, found in topics.items()}
    print(f"{len(lives)} kills, {sum(len(batch.sent) for batch in batches)} events sent; {counts}")
    assert violations(denormalised(expected(batches)), topics) == []
    assert topics["telemetry.duplicate"]
    failed = Counter(one["metadata"].get("denorm_error") for one in topics["telemetry.failed"])
    print(f"of those that failed: {dict(failed)}")
    assert failed["older than 3 months"] > 0
    assert failed[None] > 0
    assert not topics["telemetry.extractor.failed"]
    answers = [one for one in topics["telemetry.assess.raw"] if one["eid"] in ("ASSESS", "RESPONSE")]
    assert answers, "some questions are those of a registration"


def start(app: Application, flows: Iterable[str], crash: str, number: int = 0) -> Engine:
    """A life of the engine that ends at this point."""
    log = app.folder / f"life-{number}.log"
    settings = [word for one in app.overrides for word in ("--set", one)]
    command = [sys.executable, "-m", "headrace", "run", str(app.folder), *flows, "--profile", "kafka", *settings]
    with log.open("wb") as output:
        env = planted_environment(crash)
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True)
    return Engine(process, log)
