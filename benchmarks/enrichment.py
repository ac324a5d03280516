"""`python -m benchmarks.enrichment`: lookups over HTTP, against a local service that responds after 20 ms.

Every row has a different key, so caching saves nothing. After each run every row is checked: it is enriched in the
sink, or a dead letter. CPU seconds count the JVM and all Python processes, without the service.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow.json

from benchmarks.answers import Answers, answers
from benchmarks.meter import Meter
from headrace.testing.services.ports import choose

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROJECT = """
project: enrichment
state: state
spark: {{master: "local[2]"}}
streams:
  orders:
    source: {{type: files, path: in}}
    format: {{type: json, columns: "id bigint, customer string, amount double"}}
flows:
  enriched:
    sql: SELECT id, customer, amount FROM orders
    after:
      - type: http
        url: "{url}/users/{{customer}}"
        capacity: {capacity}
        columns: {{name: $.user.name, score: {{path: $.user.score, type: double}}}}
    sinks: [{{type: files, path: out, contains: json}}]
"""
FILES = 4


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.enrichment", description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--capacity", type=int, default=64)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    with answers(choose(["client"], {})["client"]) as service, tempfile.TemporaryDirectory() as scratch:
        spark = session(Path(scratch))
        service.control(delay=options.latency_ms / 1000)
        run(Path(scratch, "warm-up"), spark, service, min(options.rows, 5000), options.capacity)
        results = [
            measured(Path(scratch, f"failing-{failing}"), spark, service, failing, options) for failing in (0, 50)
        ]
        spark.stop()
    report = {"rows": options.rows, "latency_ms": options.latency_ms, "capacity": options.capacity, "runs": results}
    print(json.dumps(report) if options.json else table(report))


def session(scratch: Path) -> SparkSession:
    from headrace.engine.spark.session import start_session
    from headrace.project.model import SparkSpec

    return start_session(SparkSpec(master="local[2]"), "enrichment", scratch / "spark")


def measured(
    folder: Path, spark: SparkSession, service: Answers, failing: int, options: argparse.Namespace
) -> dict[str, Any]:
    service.control(delay=options.latency_ms / 1000, failing=failing, status=400)
    meter, own = Meter(), psutil.Process(service.process.pid)
    cpu, serving, load = meter.cpu_seconds(), sum(own.cpu_times()[:2]), os.getloadavg()[0]
    seconds = run(folder, spark, service, options.rows, options.capacity)
    served = sum(own.cpu_times()[:2]) - serving
    used = meter.cpu_seconds() - cpu - served
    meter.close()
    enriched, letters = check(folder, options.rows, failing)
    return {
        "failing_percent": failing / 10,
        "seconds": round(seconds, 1),
        "rows_per_s": round(options.rows / seconds),
        "cpu_s": round(used, 1),
        "rows_per_cpu_s": round(options.rows / used),
        "service_cpu_s": round(served, 1),
        "most_in_flight": service.stats()["most"],
        "enriched": enriched,
        "dead_letters": letters,
        "load_before": round(load, 1),
    }


def run(folder: Path, spark: SparkSession, service: Answers, rows: int, capacity: int) -> float:
    """Run the flow over new rows until it has caught up; return the duration."""
    from headrace.engine.flows.flow import FlowStarter
    from headrace.engine.state.state import StateDir
    from headrace.plan.planner import make_plan
    from headrace.project.loader import load

    (folder / "in").mkdir(parents=True)
    (folder / "headrace.yaml").write_text(PROJECT.format(url=service.url, capacity=capacity))
    for part in range(FILES):
        lines = [json.dumps({"id": n, "customer": f"customer-{n}", "amount": n / 7}) for n in range(part, rows, FILES)]
        (folder / "in" / f"{part}.json").write_text("\n".join(lines))
    project = load(folder)
    starter = FlowStarter(project, StateDir(Path(project.context.state)), spark, until_caught_up=True)
    flow = make_plan(project).flow("enriched")
    began = time.monotonic()
    query = starter.start(flow)
    query.awaitTermination()
    return time.monotonic() - began


def check(folder: Path, rows: int, failing: int) -> tuple[int, int]:
    """Check that every row is in the sink once, with the right answer, or is a dead letter."""
    from headrace.engine.letters.dead_letters import read_dead_letters

    written = [row for file in (folder / "out").rglob("*.json") for row in pyarrow.json.read_json(file).to_pylist()]
    for row in written:
        name = f"name of {row['customer']}"
        assert (row["name"], row["score"]) == (name, len(row["customer"]) + 0.5), f"a wrong answer: {row}"
    letters = read_dead_letters(folder / "state" / "dead_letters").to_pylist()
    assert {one["reason"] for one in letters} <= {"http-status-400"}
    ids = [row["id"] for row in written] + [json.loads(one["value"])["id"] for one in letters]
    assert sorted(ids) == list(range(rows)), f"{len(ids)} of {rows} rows, {len(set(ids))} of them different"
    assert bool(letters) == bool(failing)
    return len(written), len(letters)


def table(report: dict[str, Any]) -> str:
    lines = [
        f"{report['rows']:,} rows, one request each, {report['latency_ms']:g} ms latency, capacity "
        f"{report['capacity']} per task, 2 tasks",
        "",
        "| failing | rows/s | rows per CPU s | CPU s | CPU s of the service | enriched | dead letters | load before |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for one in report["runs"]:
        lines.append(
            f"| {one['failing_percent']:g} % | {one['rows_per_s']:,} | {one['rows_per_cpu_s']:,} | {one['cpu_s']} | "
            f"{one['service_cpu_s']} | {one['enriched']:,} | {one['dead_letters']:,} | {one['load_before']} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
