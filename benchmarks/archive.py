"""`python -m benchmarks.archive`: messages of 1 kB from Kafka into the archive of the telemetry application.

For comparison, the same job runs with Spark's own file sink, which keeps the partitions, but uses random file names,
does not merge files and does not finish days. Messages per second and per CPU second count the JVM and all workers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from benchmarks.meter import Meter
from headrace.testing.services import Kafka

PARTITIONS = 4
TOPICS = ("bench.telemetry.raw", "bench.telemetry.unique")
_START_MS = 1_767_225_600_000
_DAY_MS = 86_400_000
_FLOW = Path(__file__).parents[1] / "apps" / "telemetry" / "flows" / "archive.yaml"
CONTESTANTS = ("headrace", "headrace_zstd", "spark")


def event(number: int, chance: random.Random) -> bytes:
    """Return an IMPRESSION of about 1 kB, of one of two days; one in fifty is of an earlier day."""
    some = [f"{chance.getrandbits(128):032x}" for _ in range(4)]
    at = _START_MS + number * 100 % (2 * _DAY_MS) - (3 * _DAY_MS if chance.random() < 0.02 else 0)
    page = f"/learn/course/do_{chance.getrandbits(50)}/unit/do_{chance.getrandbits(50)}"
    document = {
        "eid": "IMPRESSION",
        "ets": at - 5000,
        "ver": "3.0",
        "mid": f"IMPRESSION:{some[0]}",
        "actor": {"id": some[1], "type": "User"},
        "context": {
            "channel": "0126796199493140480",
            "pdata": {"id": "prod.portal", "ver": "4.8.18", "pid": "portal.contentplayer"},
            "env": "contentplayer",
            "sid": some[2],
            "did": some[3],
            "cdata": [{"id": f"do_{chance.getrandbits(50)}", "type": "course"}, {"id": "Online", "type": "PlayerMode"}],
            "rollup": {"l1": "0126796199493140480", "l2": f"do_{chance.getrandbits(50)}"},
        },
        "object": {"id": f"do_{chance.getrandbits(50)}", "type": "Content", "ver": "2", "rollup": {"l1": some[2][:20]}},
        "tags": ["0126796199493140480"],
        "edata": {
            "type": "workflow",
            "subtype": "paginate",
            "pageid": f"stage-{number % 40}",
            "uri": page,
            "duration": round(chance.random() * 30, 3),
            "visits": [{"objid": f"do_{chance.getrandbits(50)}", "objtype": "content", "index": number % 9}],
        },
        "syncts": at,
        "@timestamp": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(at / 1000)),
        "flags": {"pp_validation_processed": True, "pp_duplicate_skipped": True, "ex_processed": True},
        "type": "events",
    }
    return json.dumps(document, separators=(",", ":")).encode()


def produce(brokers: str, count: int) -> float:
    """Fill the topics; return the mean size of a message."""
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 50, "compression.type": "lz4"})
    chance = random.Random(7)  # noqa: S311
    size = 0
    for number in range(count):
        value = event(number, chance)
        size += len(value)
        while True:
            try:
                producer.produce(TOPICS[number % 2], value, partition=number // 2 % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0
    return size / count


def headrace(brokers: str, compression: str) -> Callable[[Path], None]:
    from headrace.engine.flows.flow import FlowStarter
    from headrace.engine.spark.session import start_session
    from headrace.engine.state.state import StateDir
    from headrace.plan.planner import make_plan
    from headrace.project.loader import load

    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    shutil.copy(_FLOW, folder)
    (folder / "headrace.yaml").write_text("project: bench\ninclude: [archive.yaml]\nvariables: {env: bench}\n")
    os.environ["KAFKA_BROKERS"] = brokers
    spark = start_session(load(folder, profile="kafka").spec.spark, "bench", folder / "spark")

    def run(output: Path) -> None:
        settings = [f"variables.archive={output}", f"state={output}.state"]
        project = load(folder, profile="kafka", overrides=[*settings, "flows.archive.max_records=300000"])
        (flow,) = make_plan(project, ["archive"]).flows
        flow = flow if compression == "gzip" else _compressed(flow, compression)
        state = StateDir(Path(f"{output}.state"))
        query = FlowStarter(project, state, spark, until_caught_up=True).start(flow)
        query.awaitTermination()
        assert query.exception() is None, query.exception()
        flow.sinks[0].sink.publish_caught_up(project.context)

    return run


def _compressed(flow: Any, compression: str) -> Any:
    from dataclasses import replace

    (step,) = flow.sinks
    return replace(flow, sinks=(replace(step, sink=step.sink.model_copy(update={"compression": compression})),))


def plain_spark(brokers: str) -> Callable[[Path], None]:
    from pyspark.sql import functions as F

    from benchmarks.handwritten import session
    from headrace.engine.spark.jars import engine_jars

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session([str(jar) for jar in engine_jars()])
    spark.sparkContext.setLogLevel("ERROR")

    def run(output: Path) -> None:
        source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", brokers)
        source = source.option("subscribePattern", "bench[.].*").option("startingOffsets", "earliest")
        source = source.option("kafka.isolation.level", "read_committed").option("maxOffsetsPerTrigger", 300000)
        value = F.col("value").cast("string")
        at = F.from_json(value, "syncts BIGINT").getField("syncts")
        day = F.date_format(F.timestamp_millis(at), "yyyy-MM-dd")
        rows = source.load().select("topic", value.alias("value"), day.alias("dt"))
        writer = rows.writeStream.format("text").partitionBy("topic", "dt").option("compression", "gzip")
        writer = writer.option("path", str(output)).option("checkpointLocation", f"{output}.state")
        writer.trigger(availableNow=True).start().awaitTermination()

    return run


def work(contestant: str, brokers: str, warm_ups: int, runs: int) -> None:
    """Run one variant in a separate process. Prints one line of JSON."""
    meter = Meter()
    gzip = "zstd" if contestant == "headrace_zstd" else "gzip"
    run = plain_spark(brokers) if contestant == "spark" else headrace(brokers, gzip)
    measured = []
    for number in range(warm_ups + runs):
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
            cpu, wall = meter.cpu_seconds(), time.monotonic()
            run(Path(scratch) / "archive")
            spent = {"cpu_s": meter.cpu_seconds() - cpu, "wall_s": time.monotonic() - wall}
            files = list((Path(scratch) / "archive").glob("*/dt=*/[!_.]*"))
            measured.append({**spent, "files": len(files), "bytes": sum(file.stat().st_size for file in files)})
        print(f"{contestant}: run {number + 1}: {measured[-1]}", file=sys.stderr)
    meter.close()
    print(json.dumps({"runs": measured[warm_ups:], "peak_mb": meter.peak_mb, "load": os.getloadavg()[0]}))


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.archive", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--warm-ups", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=2, help="measured runs; the best counts")
    parser.add_argument("--contestants", nargs="*", default=list(CONTESTANTS), choices=CONTESTANTS)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/archive-DATE.json")
    parser.add_argument("--work", nargs=2, metavar=("CONTESTANT", "BROKERS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(*options.work, options.warm_ups, options.repeat)
        return
    with Kafka() as kafka:
        for topic in TOPICS:
            kafka.create_topic(topic, PARTITIONS)
        size = produce(kafka.address, options.messages)
        results = [measure(kafka.address, contestant, options) for contestant in options.contestants]
    report = {"messages": options.messages, "bytes": round(size), "cpus": os.cpu_count(), "results": results}
    print(json.dumps(report, indent=2))
    if options.save:
        file = Path(__file__).parent / "results" / f"archive-{time.strftime('%Y-%m-%d')}.json"
        file.write_text(json.dumps(report, indent=2) + "\n")


def measure(brokers: str, contestant: str, options: argparse.Namespace) -> dict[str, Any]:
    arguments = ["--work", contestant, brokers, "--warm-ups", str(options.warm_ups), "--repeat", str(options.repeat)]
    command = [sys.executable, "-m", "benchmarks.archive", *arguments]
    completed = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=900)
    measured = json.loads(completed.stdout.splitlines()[-1])
    best = min(measured["runs"], key=lambda run: run["wall_s"])
    return {
        "contestant": contestant,
        "messages_per_s": round(options.messages / best["wall_s"]),
        "messages_per_cpu_s": round(options.messages / best["cpu_s"]),
        "files": best["files"],
        "megabytes": round(best["bytes"] / 1e6),
        "peak_mb": round(measured["peak_mb"]),
        "load": round(measured["load"], 1),
    }


if __name__ == "__main__":
    main()
