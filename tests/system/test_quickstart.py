"""What a newcomer meets: the quickstart through the command, in a process of its own, and a new project."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from deltalake import DeltaTable
from tests.serve.nodekit import client, until
from tests.system.conftest import RunProject

from headrace.cli.main import main
from headrace.core.errors import ProjectError
from headrace.engine.adhoc.query import AdHocSession
from headrace.engine.state.state import StateDir
from headrace.project.loader import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copy = tmp_path / "quickstart"
    shutil.copytree(QUICKSTART, copy, ignore=shutil.ignore_patterns("lake", ".headrace"))
    return copy


def headrace(*arguments: str, timeout: float = 900) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a node that has caught up."""
    command = [sys.executable, "-m", "headrace", "serve", str(folder), "--port", "0", "--set", "serve.grpc_port=null"]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        try:
            address = json.loads(node.stdout.readline())["http"]
            with client() as asking:
                until(lambda: asking.get(f"{address}/health").status_code == 200, seconds=600)
            yield address
        finally:
            node.send_signal(signal.SIGTERM)
    assert node.returncode == 0


def test_run_ask_and_test(folder: Path, spark: SparkSession, tmp_path: Path) -> None:
    """By the commands; questions are asked as `headrace sql` does, whose documents are in functions/test_vectors.py."""
    counts = [f"streams.{name}.source.count=5000" for name in ("bookings", "payments")]
    settings = [word for setting in counts for word in ("--set", setting)]
    done = headrace("run", str(folder), "--until-caught-up", "--for", "2h", *settings)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "headrace sql" in done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["flow"] for row in rows} == {"bookings_per_service"}
    windows = DeltaTable(str(folder / "lake" / "bookings_per_service")).to_pyarrow_table().to_pylist()
    assert len(windows) >= len(rows) > 0
    orders = DeltaTable(str(folder / "lake" / "big_rides")).to_pyarrow_table()["order_id"].to_pylist()
    assert len(orders) == len(set(orders)) > 0

    with serving(folder) as address:
        served = httpx.get(f"{address}/bookings", params={"$limit": 1000}, timeout=60).json()
    assert {(row["service"], row["bookings"], row["amount"]) for row in served} == {
        (row["service"], row["bookings"], row["amount"]) for row in windows
    }

    project = load(folder)
    asked = AdHocSession(spark.newSession(), project, StateDir.of(project.context), tmp_path / "letters")
    answer = asked.run("SELECT sum(bookings) AS n FROM bookings_per_service")
    assert answer.to_pylist() == [{"n": sum(row["bookings"] for row in windows)}]
    with pytest.raises(ProjectError) as refused:
        asked.run("SELECT nope")
    assert refused.value.code == "unknown-column"
    assert asked.run("SELECT count(*) AS n FROM dead_letters").to_pylist()[0]["n"] > 40

    tested = headrace("test", str(folder))
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert tested.stdout.splitlines()[-1] == "1 passed, 0 failed"


def test_it_serves_while_it_runs_and_ctrl_c_stops_without_a_trace(folder: Path) -> None:
    sinks = "[{type: lake, path: lake/big_rides}, {type: endpoint, key: order_id}]"
    settings = [f"flows.big_rides.sinks={sinks}", "serve.port=0", "serve.grpc_port=null", "serve.workers=1"]
    arguments = [str(folder), "big_rides", *(word for setting in settings for word in ("--set", setting))]
    command = [sys.executable, "-m", "headrace", "run", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        said = ""
        while "(docs: " not in said and running.poll() is None:
            said += running.stderr.readline()
        address = said.rpartition("serving ")[2].split()[0] + "/big_rides"
        with client() as asking:
            until(lambda: rows_at(asking, address), seconds=600)
        status = json.loads(headrace("status", str(folder), "--json").stdout)
        os.kill(running.pid, signal.SIGINT)
        _rest, more = running.communicate(timeout=300)
    assert running.returncode == 0, said + more
    assert "Traceback" not in said + more
    assert "stopping" in more
    assert status["serve"]["endpoints"]["big_rides"]["state"] == "ready"
    assert status["serve"]["node"]["http"] == address.removesuffix("/big_rides")
    again = headrace("run", *arguments, "--for", "5s", "--json")
    assert again.returncode == 0, again.stderr
    orders = DeltaTable(str(folder / "lake" / "big_rides")).to_pyarrow_table()["order_id"].to_pylist()
    assert len(orders) == len(set(orders)) > 0


def rows_at(asking: httpx.Client, address: str) -> list[dict[str, Any]]:
    """The rows that are served; none while the endpoint has nothing yet."""
    answer = asking.get(address)
    return answer.json() if answer.status_code == 200 else []


def test_a_new_project_runs_as_it_is(
    tmp_path: Path, run_project: RunProject, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "shop"
    assert main(["init", str(folder)]) == 0
    capsys.readouterr()
    count = 2000  # at 20 orders per second: 100 seconds, of which 8 windows at least are over
    run_project(folder, streams__orders__source__count=count)
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith('{"flow"')]
    assert {"flow", "batch", "row"} <= shown[0].keys()
    kept = DeltaTable(folder / "lake" / "sales").to_pyarrow_table().to_pylist()
    assert len(kept) >= 8 * 5
    assert {row["shop"] for row in kept} == {f"shop-{number}" for number in range(5)}
    assert count * 0.8 * 0.9 < sum(row["orders"] for row in kept) < count
