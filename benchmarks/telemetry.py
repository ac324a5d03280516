"""`python -m benchmarks.telemetry`: the telemetry application over Kafka and Redis, stage by stage.

Events of 1 kB, in batches as devices send them, go through extraction, validation, deduplication, denormalisation and
routing, and then to the OLAP stage; every stage reads a topic and writes its topics exactly once. CPU seconds count the
JVM and all Python processes of the engine, not Kafka and Redis. After the run every event is checked.

With `--one-core` the engine has one core, and Kafka and Redis have another, so that events per second are those of one
core by the clock.

The compilation of the JVM depends on the number of batches, so the warm-up run uses small batches.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.telemetry.generator import Batch, Generator, lookups

from benchmarks.meter import Meter, started
from headrace.testing.services import Kafka, Redis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.project.loader import Project

APP = Path(__file__).parents[1] / "apps" / "telemetry"
PIPELINE = ("extract", "redact", "preprocess", "denormalise")
STAGES = (*PIPELINE, "olap")
SMALL_BATCHES = ("defaults.max_records=5000", "flows.extract.max_records=250")
CACHES = {"content_cache": 5, "device_cache": 2, "user_cache": 12, "dialcode_cache": 6}
TOPICS = (
    "telemetry.ingest", "telemetry.redact", "telemetry.raw", "telemetry.failed", "telemetry.duplicate",
    "telemetry.error", "telemetry.audit", "telemetry.cb.audit", "telemetry.unique", "telemetry.unique.primary",
    "telemetry.unique.secondary", "telemetry.extractor.failed", "telemetry.extractor.duplicate",
    "telemetry.assess.raw", "telemetry.denorm", "druid.events.telemetry", "druid.events.summary", "druid.events.log",
    "druid.events.error",
)  # fmt: skip
PARTITIONS = 2


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.telemetry", description=__doc__)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--warm-up", type=int, default=100_000, help="events of the run that is not measured")
    parser.add_argument("--size", type=int, default=20, help="events per batch")
    parser.add_argument("--one-core", action="store_true", help="the engine on one core, the services on another")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, Kafka() as kafka, Redis() as redis:
        os.environ["KAFKA_BROKERS"] = kafka.address
        caches = [f"variables.{name}=redis://{redis.address}/{database}" for name, database in CACHES.items()]
        fill(redis)
        services = started()
        if options.one_core:
            keep_apart(services)
        spark = session(Path(scratch))
        small = [*caches, *SMALL_BATCHES]
        run(Path(scratch), "warm", kafka, spark, services, small, options.warm_up, options.size)
        report = run(Path(scratch), "bench", kafka, spark, services, caches, options.events, options.size)
        spark.stop()
    print(json.dumps(report) if options.json else table(report))


def session(scratch: Path) -> SparkSession:
    from headrace.engine.spark.session import start_session
    from headrace.project.model import SparkSpec

    return start_session(SparkSpec(master="local[2]", memory="2g"), "telemetry", scratch / "spark")


def keep_apart(services: set[int]) -> None:
    """Bind this process and its future children to one core, and the running services to another."""
    own, service_core, *_ = sorted(os.sched_getaffinity(0))
    for service in services:
        for thread in Path(f"/proc/{service}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {service_core})
    os.sched_setaffinity(0, {own})


def fill(redis: Redis) -> None:
    """Fill the caches of devices, users and contents."""
    from redis import Redis as Client

    pipes = {
        database: Client(host="127.0.0.1", port=redis.port, db=database).pipeline() for database in CACHES.values()
    }
    for database, key, value in lookups():
        if isinstance(value, str):
            pipes[database].set(key, value)
        else:
            pipes[database].hset(key, mapping=dict(value))
    for pipe in pipes.values():
        pipe.execute()


def run(
    folder: Path,
    env: str,
    kafka: Kafka,
    spark: SparkSession,
    services: set[int],
    overrides: list[str],
    events: int,
    size: int,
) -> dict[str, Any]:
    """Run all stages over new topics, one after the other."""
    from headrace.project.loader import load

    for topic in TOPICS:
        kafka.create_topic(f"{env}.{topic}", PARTITIONS)
    # events older than three months are not denormalised
    yesterday = int(time.time() * 1000) - 86_400_000
    batches = Generator(seed=len(env), size=size, start=yesterday).batches(events // size)
    sent, average = produce(kafka, f"{env}.telemetry.ingest", batches)
    project = load(APP, profile="kafka", overrides=[f"variables.env={env}", f"state={folder / env}", *overrides])
    load_before = os.getloadavg()[0]
    stages = [stage(project, spark, name, services) for name in STAGES if name in project.spec.flows]
    counts = Counter({topic: size_of(kafka, f"{env}.{topic}") for topic in TOPICS})
    check(sent, counts, denormalised="denormalise" in project.spec.flows)
    return {
        "events": sent.total(),
        "event_bytes": average,
        "stages": stages,
        "pipeline": whole(sent.total(), [one for one in stages if one["stage"] in PIPELINE]),
        "all": whole(sent.total(), stages),
        "cpus": len(os.sched_getaffinity(0)),
        "load_before": round(load_before, 1),
        "topics": {topic: count for topic, count in counts.items() if count},
    }


def whole(events: int, stages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the total of some stages."""
    seconds, cpu = sum(one["seconds"] for one in stages), sum(one["cpu_s"] for one in stages)
    figures = {"seconds": round(seconds, 1), "events_per_s": round(events / seconds)}
    return {**figures, "cpu_s": round(cpu, 1), "events_per_cpu_s": round(events / cpu)}


def produce(kafka: Kafka, topic: str, batches: Iterable[Batch]) -> tuple[Counter[str], int]:
    """Send the events; return the number by outcome, and their mean size."""
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": kafka.address, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
    )
    fates: Counter[str] = Counter()
    size = 0
    for batch in batches:
        fates.update(fate for _, fate in batch.sent)
        size += len(batch.text)
        producer.produce(topic, batch.text)
        producer.poll(0)
    assert producer.flush(120) == 0
    return fates, size // max(fates.total(), 1)


def stage(project: Project, spark: SparkSession, name: str, services: set[int]) -> dict[str, Any]:
    """Run one flow until it has caught up."""
    from headrace.engine.flows.flow import FlowStarter
    from headrace.engine.state.state import StateDir
    from headrace.engine.supervise.runner import Runner
    from headrace.plan.planner import make_plan

    state = StateDir.of(project.context)
    plan = make_plan(project, [name])
    meter = Meter(services)
    before, began = meter.cpu_seconds(), time.monotonic()
    (run,) = Runner(FlowStarter(project, state, spark, until_caught_up=True), plan).run(seconds=1800)
    seconds, used = time.monotonic() - began, meter.cpu_seconds() - before
    meter.close()
    if run.error is not None:
        raise run.error
    rows = run.rows_in
    figures = {"stage": name, "records": rows, "seconds": round(seconds, 2), "cpu_s": round(used, 2)}
    return {**figures, "records_per_cpu_s": round(rows / used), "peak_mb": round(meter.peak_mb)}


def size_of(kafka: Kafka, topic: str) -> int:
    """Return the number of committed records of a topic."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": kafka.address, "group.id": "bench", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.partition.eof": True, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    count = ended = 0
    while ended < PARTITIONS:
        for message in consumer.consume(10_000, 0.2):
            if message.error() is None:
                count += 1
            else:
                ended += 1
    consumer.close()
    return count


def check(sent: Counter[str], counts: Counter[str], denormalised: bool) -> None:
    """Check that every event is in exactly one topic."""
    log = sent["log"] + counts["telemetry.ingest"]
    assert counts["druid.events.log"] == log, f"{counts['druid.events.log']} of {log} LOG events"
    items = counts["telemetry.unique.primary"] + counts["telemetry.unique.secondary"] - counts["telemetry.cb.audit"]
    assert counts["telemetry.unique"] == items, f"{counts['telemetry.unique']} of {items} events that are kept"
    if not denormalised:
        assert counts["telemetry.failed"] == sent["failed"], (
            f"{counts['telemetry.failed']} of {sent['failed']} bad events"
        )
    else:
        unique = counts["telemetry.unique.primary"] + counts["telemetry.unique.secondary"] + sent["failed"]
        assert counts["telemetry.denorm"] + counts["telemetry.failed"] == unique
        assert counts["druid.events.telemetry"] == counts["telemetry.denorm"]


def table(report: dict[str, Any]) -> str:
    """Print the results as text."""
    lines = [
        f"{report['events']:,} events of {report['event_bytes']} bytes, {report['cpus']} cores, load before "
        f"{report['load_before']}",
        "",
        "| stage | records in | seconds | CPU s | records per CPU s | peak MB |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one['stage']} | {one['records']:,} | {one['seconds']} | {one['cpu_s']} | {one['records_per_cpu_s']:,} | "
        f"{one['peak_mb']:,} |"
        for one in report["stages"]
    ]
    for name, label in (("pipeline", "up to denormalisation"), ("all", "all stages")):
        one = report[name]
        rates = f"{one['events_per_s']:,} events/s, {one['events_per_cpu_s']:,} events per CPU second"
        lines += ["", f"{label}: {one['seconds']} s, {one['cpu_s']} CPU s: {rates}"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
