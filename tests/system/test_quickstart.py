"""The quickstart as a newcomer meets it: through the command, in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

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


def test_run_ask_and_test(folder: Path) -> None:
    counts = [f"streams.{name}.source.count=5000" for name in ("bookings", "payments")]
    settings = [word for setting in counts for word in ("--set", setting)]
    done = headrace("run", str(folder), "--until-caught-up", *settings)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "headrace sql" in done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["flow"] for row in rows} == {"bookings_per_service"}
    windows = DeltaTable(str(folder / "lake" / "bookings_per_service")).to_pyarrow_table().to_pylist()
    assert len(windows) >= len(rows) > 0

    questions = [
        "SELECT sum(bookings) AS n FROM bookings_per_service",
        "SELECT nope",
        "SELECT count(*) FROM dead_letters",
    ]
    asked = headrace("sql", "-p", str(folder), "--json", "--keep-going", *questions)
    answers = [json.loads(line) for line in asked.stdout.splitlines()]
    assert asked.returncode == 1
    assert answers[0] == {"columns": ["n"], "rows": [[sum(row["bookings"] for row in windows)]]}
    assert answers[1]["error"]["code"] == "unknown-column"
    assert answers[2]["rows"][0][0] > 40

    tested = headrace("test", str(folder))
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert tested.stdout.splitlines()[-1] == "1 passed, 0 failed"


def test_ctrl_c_stops_without_a_trace_and_the_next_start_goes_on(folder: Path) -> None:
    command = [sys.executable, "-m", "headrace", "run", str(folder), "big_rides"]
    table = folder / "lake" / "big_rides" / "_delta_log"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        said = ""
        while not any(table.glob("*.json")) and running.poll() is None:
            line = running.stderr.readline()
            said += line
        os.kill(running.pid, signal.SIGINT)
        _rest, more = running.communicate(timeout=300)
    assert running.returncode == 0, said + more
    assert "Traceback" not in said + more
    assert "stopping" in more
    again = headrace("run", str(folder), "big_rides", "--for", "5s", "--json")
    assert again.returncode == 0, again.stderr
    orders = DeltaTable(str(folder / "lake" / "big_rides")).to_pyarrow_table()["order_id"].to_pylist()
    assert len(orders) == len(set(orders)) > 0


def test_sql_outside_a_project(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace", "sql", "--json"]
    done = subprocess.run(
        command,
        input="SELECT 1 AS a; SELECT 'x;y' AS b",
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=600,
        check=True,
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"columns": ["a"], "rows": [[1]]},
        {"columns": ["b"], "rows": [["x;y"]]},
    ]
