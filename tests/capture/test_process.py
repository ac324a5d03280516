"""The capture as a process: it follows tables, survives being killed without losing or doubling a row, and ends with
the one that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from tests.serve.nodekit import until

from headrace.capture.__main__ import capture
from headrace.core.context import Context
from headrace.core.endpoints import Op
from headrace.core.errors import ProjectError
from headrace.core.files.lock import lock_holder
from headrace.core.processes.children import Child
from headrace.core.tables import WEIGHT
from headrace.log.inbox import Inbox, InboxEntry, Pushed
from headrace.log.tables import table_log
from headrace.log.tablestatus import read_group, tables_folder
from headrace.project.project_ref import ProjectRef

pytestmark = pytest.mark.service

PROJECT = """
project: shop
tables:
  orders:
    source: {type: push, columns: 'id bigint, state string', key: [id]}
"""
PARENT = """
import sys, time
from pathlib import Path
from headrace.core.processes.children import Child
from headrace.project.project_ref import ProjectRef
child = Child("capture", "headrace.capture", ProjectRef(Path(sys.argv[1])).environment(), Path(sys.argv[1]) / "log.txt")
child.start()
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "headrace.yaml").write_text(PROJECT)
    return tmp_path


@pytest.fixture
def child(root: Path) -> Iterator[Child]:
    made = Child("capture", "headrace.capture", ProjectRef(root).environment(), root / "log.txt")
    made.start()
    yield made
    made.ask_to_end()
    made.end(time.monotonic() + 20)


def push(root: Path, *rows: tuple[int, str]) -> None:
    context = Context(root, str(root / ".headrace"))
    inbox = Inbox(context.log_path, "orders", timedelta(hours=1))
    entries = [InboxEntry(Op.UPSERT, b'{"id": %d, "state": "%s"}' % (number, state.encode())) for number, state in rows]
    inbox.add([Pushed(entries)])


def held(root: Path) -> dict[tuple[int, str], int]:
    """What the log adds up to."""
    log = table_log(Context(root, str(root / ".headrace")), "push")
    found: dict[tuple[int, str], int] = {}
    for segment in log.after(0, 10_000):
        for part in segment.parts.get("orders", ()):
            for row in log.read(part, log.shapes()["orders"]).to_pylist():
                place = (row["id"], row["state"])
                found[place] = found.get(place, 0) + row[WEIGHT]
    return {row: weight for row, weight in found.items() if weight}


def test_a_capture_that_is_killed_goes_on_without_loss(root: Path, child: Child) -> None:
    expected: dict[tuple[int, str], int] = {}
    for life in range(3):
        rows = [(number, f"life {life}") for number in range(life, 200)]
        for at in range(0, len(rows), 20):
            push(root, *rows[at : at + 20])
        expected = dict.fromkeys(rows, 1) | {row: 1 for row in expected if row[0] < life}
        if life < 2:
            until(lambda: table_log(Context(root, str(root / ".headrace")), "push").end() > 0)
            pid = child.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            until(lambda: child.tend() == -signal.SIGKILL)
            until(lambda: child.tend() is None and child.pid is not None)
    until(lambda: held(root) == expected)
    context = Context(root, str(root / ".headrace"))
    folder = tables_folder(context)
    until(lambda: (read_group(folder, "push") or {}).get("caught_up") is True)
    said = read_group(folder, "push")
    assert said is not None
    assert (said["live"], said["state"], said["pid"]) == (True, "running", child.pid)
    child.ask_to_end()
    child.end(time.monotonic() + 20)
    said = read_group(folder, "push")
    assert said is not None
    assert (said["live"], said["state"], said["reason"]) == (False, "stopped", None)


def test_it_ends_with_its_parent_even_when_that_is_killed(root: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(root)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    until(lambda: lock_holder(root / ".headrace" / "tables" / "capture.lock") == child.pid)
    parent.kill()
    parent.wait()
    child.wait(30)
    assert not child.is_running()
    parent.stdout.close()


def test_there_is_one_per_state_folder(root: Path, child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    until(lambda: lock_holder(root / ".headrace" / "tables" / "capture.lock") == child.pid)
    monkeypatch.setattr("headrace.capture.__main__.STOP_SECONDS", 0.1)
    with pytest.raises(ProjectError) as error:
        capture(ProjectRef(root).project(), threading.Event())
    assert error.value.code == "capture-in-use"
