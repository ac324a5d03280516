"""`make bench`: Headrace and the same jobs in plain PySpark, in one run.

Every figure is a ratio from one run on one machine; rows per CPU second count the JVM and all Python processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from benchmarks.events import PARTITIONS, produce
from headrace.testing.services import Kafka

JOBS = [
    f"{form}_{job}" for form in ("json", "protobuf") for job in ("stateless_noop", "stateless_kafka", "window_kafka")
]
CONTESTANTS = ("headrace", "handwritten")


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument(
        "--warm-ups", type=int, default=2, help="runs before the measured ones: a stream runs for weeks"
    )
    parser.add_argument("--repeat", type=int, default=2, help="measured runs; the best counts")
    parser.add_argument("--jobs", nargs="*", default=JOBS, choices=JOBS)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/DATE.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, Kafka() as kafka:
        module_dir = compile_proto(Path(scratch))
        for topic in ("bench_json", "bench_protobuf"):
            kafka.create_topic(topic, PARTITIONS)
        note(f"producing {options.rows:,} events as JSON and as protobuf")
        sizes = produce(kafka.address, options.rows, module_dir)
        results = [measure(kafka, job, options, module_dir) for job in options.jobs]
    report = {
        "rows": options.rows,
        "warm_ups": options.warm_ups,
        "event_bytes": sizes,
        "cpus": os.cpu_count(),
        "results": results,
    }
    print(table(report))
    if options.save:
        file = Path(__file__).parent / "results" / f"{time.strftime('%Y-%m-%d')}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(report, indent=2) + "\n")
        note(f"saved {file}")


def compile_proto(folder: Path) -> Path:
    schemas = Path(__file__).parent / "project" / "schemas"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{schemas}", f"--python_out={folder}", "rides.proto"]
    subprocess.run(command, check=True)
    return folder


def measure(kafka: Kafka, job: str, options: argparse.Namespace, module_dir: Path) -> dict[str, Any]:
    result: dict[str, Any] = {"job": job}
    for contestant in CONTESTANTS:
        outputs = [f"{job}_{contestant}_{run}" for run in range(options.warm_ups + options.repeat)]
        for output in outputs:
            kafka.create_topic(output, PARTITIONS)
        note(f"{job}: {contestant}")
        arguments = [contestant, job, kafka.address, str(module_dir), str(options.warm_ups), *outputs]
        command = [sys.executable, "-m", "benchmarks.worker", *arguments]
        completed = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=900)
        measured = json.loads(completed.stdout.splitlines()[-1])
        best = min(measured["runs"], key=lambda run: run["cpu_s"])
        result[contestant] = {
            "cpu_s": round(best["cpu_s"], 2),
            "wall_s": round(best["wall_s"], 2),
            "rows_per_s": round(options.rows / best["wall_s"]),
            "rows_per_cpu_s": round(options.rows / best["cpu_s"]),
            "peak_mb": round(measured["peak_mb"]),
            "load": round(measured["load"], 1),
            "rows_out": written(kafka.address, outputs[-1]) if job.endswith("kafka") else None,
        }
    ours, theirs = result["headrace"], result["handwritten"]
    if ours["rows_out"] != theirs["rows_out"]:
        raise SystemExit(f"{job}: headrace wrote {ours['rows_out']} rows, the hand-written job {theirs['rows_out']}")
    result["cpu_ratio"] = round(theirs["cpu_s"] / ours["cpu_s"], 2)
    result["wall_ratio"] = round(theirs["wall_s"] / ours["wall_s"], 2)
    return result


def written(brokers: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "bench"})
    ends = [consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10) for p in range(PARTITIONS)]
    consumer.close()
    return sum(high - low for low, high in ends)


def table(report: dict[str, Any]) -> str:
    lines = [
        f"{report['rows']:,} events, {report['event_bytes'][0]} bytes as JSON, {report['event_bytes'][1]} as protobuf, "
        f"{report['cpus']} CPUs; CPU seconds count the JVM and all Python processes",
        "",
        "| job | rows/s | by hand | rows per CPU s | by hand | CPU ratio | wall ratio | peak MB | by hand | load |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for one in report["results"]:
        ours, theirs = one["headrace"], one["handwritten"]
        lines.append(
            f"| {one['job']} | {ours['rows_per_s']:,} | {theirs['rows_per_s']:,} | {ours['rows_per_cpu_s']:,} | "
            f"{theirs['rows_per_cpu_s']:,} | {one['cpu_ratio']}x | {one['wall_ratio']}x | {ours['peak_mb']:,} | "
            f"{theirs['peak_mb']:,} | {ours['load']}/{theirs['load']} |"
        )
    return "\n".join(lines)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
