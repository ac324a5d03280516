"""A project gives the same results on plain Spark (`spark.accelerate: false`) as with all accelerations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.engine.flows.flow import FlowStarter
from headrace.engine.spark.java_helpers import helpers_jar
from headrace.engine.spark.session import start_session
from headrace.engine.state.schemas import infer_schema
from headrace.engine.state.state import StateDir
from headrace.engine.supervise.runner import Runner
from headrace.plan.planner import make_plan
from headrace.processors import fields
from headrace.project.loader import load

pytestmark = pytest.mark.spark

PROJECT = """
project: rides
spark: {master: "local[2]", conf: {spark.sql.shuffle.partitions: 2}, accelerate: ACCELERATE}
streams:
  bookings:
    source: {type: files, path: in}
    format: {type: json, columns: "id bigint, service string, amount double, at timestamp"}
    event_time: {column: at, watermark: 1s}
  documents:
    source: {type: files, path: in}
    format: {type: raw, as: string}
flows:
  per_service:
    sql: |
      SELECT window.start AS since, service, count(*) AS bookings, sum(amount) AS amount
      FROM bookings GROUP BY window(at, '10 seconds'), service
    sinks: [{type: lake, path: lake/per_service}]
  once:
    before: {bookings: [{type: deduplicate, key: [id], ttl: 1h}]}
    sql: SELECT id, service FROM bookings
    sinks: [{type: lake, path: lake/once}]
  fields:
    before: {documents: [{type: fields, fields: {id: id, service: service}}]}
    sql: SELECT id, service FROM documents
    sinks: [{type: lake, path: lake/fields}]
"""
FLOWS = ("per_service", "once", "fields")
ENGINE = "import sys; from tests.system.test_acceleration import run_engine; run_engine(sys.argv[1])"


def worker_parents(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import os

    import psutil

    yield pa.record_batch([[" ".join(p.cmdline()) for p in psutil.Process(os.getpid()).parents()]], ["command"])


def run_engine(folder: str) -> None:
    """Runs in a process of its own, as a JVM keeps its class path: run the project, then print what Spark uses."""
    readers: list[str | None] = []
    native_reader = fields.native_reader

    def noted_reader(*arguments: Any) -> str | None:
        readers.append(native_reader(*arguments))
        return readers[-1]

    fields.native_reader = noted_reader
    project = load(Path(folder))
    state = StateDir.of(project.context)
    spark = start_session(project.spec.spark, project.spec.project, state.logs)
    plan = make_plan(project, (), lambda name, spec: infer_schema(project, state, name, spec))
    for run in Runner(FlowStarter(project, state, spark, until_caught_up=True), plan).run(seconds=600):
        assert run.error is None, run.error
    jvm: Any = spark.sparkContext._jvm
    runtime = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
    root = jvm.org.apache.hadoop.fs.Path("file:///")
    parents = spark.range(0, 1, 1, 1).mapInArrow(worker_parents, "command string").collect()
    uses = {
        "fork server": any("fork_server" in row.command for row in parents),
        "worker daemon": "headrace" in spark.conf.get("spark.python.daemon.module", ""),
        "class archive": any("SharedArchiveFile" in str(option) for option in runtime.getInputArguments()),
        "jar of the helpers": str(helpers_jar()) in str(runtime.getClassPath()),
        "missing classes": jvm.java.lang.Thread.currentThread().getContextClassLoader().getClass().getName(),
        "fields reader": any(readers),
        "local files": root.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).getClass().getName(),
    }
    assert readers
    print(json.dumps(uses))
    spark.stop()


def results(folder: Path, accelerate: bool) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    (folder / "in").mkdir(parents=True)
    for file in range(3):
        lines = [
            {"id": n % 250, "service": f"s{n % 3}", "amount": n / 4, "at": f"2026-01-01T00:00:{n // 10:02}Z"}
            for n in range(file * 100, file * 100 + 100)
        ]
        (folder / "in" / f"{file}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "headrace.yaml").write_text(PROJECT.replace("ACCELERATE", str(accelerate).lower()))
    env = {name: value for name, value in os.environ.items() if name != "HEADRACE_ACCELERATE"}
    command = [sys.executable, "-c", ENGINE, str(folder)]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=env, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    tables = {flow: DeltaTable(folder / "lake" / flow).to_pyarrow_table().to_pylist() for flow in FLOWS}
    rows = {flow: sorted(tuple(row.values()) for row in table) for flow, table in tables.items()}
    return json.loads(done.stdout.splitlines()[-1]), rows


def test_plain_spark_gives_the_same_results(tmp_path: Path) -> None:
    uses, plain = results(tmp_path / "plain", accelerate=False)
    assert not uses.pop("missing classes").startswith("headrace")
    assert uses.pop("local files").startswith("org.apache.hadoop.")
    assert not any(uses.values()), uses
    uses, accelerated = results(tmp_path / "accelerated", accelerate=True)
    assert uses.pop("missing classes") == "headrace.MissingClassCache"
    assert uses.pop("local files") == "headrace.LocalFiles"
    assert all(uses.values()), uses
    assert plain == accelerated
    assert {flow: len(rows) for flow, rows in plain.items()} == {"per_service": 6, "once": 250, "fields": 300}
