"""When memory runs out: records that turn out much larger than those that were sampled, and a JVM that is killed.

The first is a real failure: the engine's JVM may have only so much memory outside of its heap that the portion which
suits small records does not fit. The flow is started again with smaller portions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.core.errors import Exit
from headrace.engine.spark.arrow_batches import batch_limits
from headrace.engine.state.state import StateDir
from headrace.engine.state.status_file import read_status

PROJECT = """
project: large
streams:
  lines: {source: {type: files, path: in}, format: {type: json, columns: "id bigint, text string"}}
flows:
  sizes:
    sql: SELECT id, length(text) AS size FROM lines
    sinks: [{type: files, path: out, contains: json}]
defaults: {trigger: 200ms}
http: {port: 0}
spark:
  master: local[1]
  conf:
    spark.driver.extraJavaOptions: -Dio.netty.maxDirectMemory=33554432
    spark.sql.execution.arrow.maxBytesPerBatch: "2097152"
"""
SMALL, LARGE, LENGTH = 100, 12_000, 4_000


def lines(folder: Path, name: str, ids: range, length: int) -> None:
    text = "".join(json.dumps({"id": number, "text": "x" * length}) + "\n" for number in ids)
    (folder / f".{name}").write_text(text)
    (folder / f".{name}").rename(folder / name)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in folder.glob("*.json") for line in file.read_text().splitlines()]


@pytest.mark.spark
def test_a_flow_whose_records_grow_goes_on_with_sparks_own_limit_and_a_lost_spark_is_said(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "headrace.yaml").write_text(PROJECT)
    lines(tmp_path / "in", "a.json", range(SMALL), 10)
    assert batch_limits(60) != {}, "such records go to Python many at once, whatever they weigh"
    state = StateDir(tmp_path / ".headrace")
    with (tmp_path / "engine.txt").open("wb") as said:
        command = [sys.executable, "-m", "headrace", "run", str(tmp_path)]
        engine = subprocess.Popen(command, env=dict(os.environ), stdout=said, stderr=said)
    try:
        flow = await_rows(state, engine, SMALL)
        assert flow["restarts"] == 0
        lines(tmp_path / "in", "b.json", range(SMALL, SMALL + LARGE), LENGTH)
        flow = await_rows(state, engine, SMALL + LARGE)
        # in the end as the system does when the machine has no memory left
        next(one for one in psutil.Process(engine.pid).children(recursive=True) if one.name() == "java").kill()
        assert engine.wait(120) == Exit.TRANSIENT
        assert "error[spark-lost]" in (tmp_path / "engine.txt").read_text()
    finally:
        engine.kill()
    assert (flow["restarts"], flow["last_error"]["code"]) == (1, "out-of-memory")
    found = sorted((row["id"], row["size"]) for row in rows(tmp_path / "out"))
    assert found == [(number, 10 if number < SMALL else LENGTH) for number in range(SMALL + LARGE)]


def await_rows(state: StateDir, engine: subprocess.Popen[bytes], count: int) -> dict[str, Any]:
    deadline = time.monotonic() + 240
    while True:
        assert engine.poll() is None
        document = read_status(state).document
        flow: dict[str, Any] = document["flow_list"][0] if document else {"rows_in": None}
        if flow["rows_in"] == count:
            return flow
        assert time.monotonic() < deadline, flow
        time.sleep(0.1)
