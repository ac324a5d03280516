"""Processes of a node: started again when they die, ended together, never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.serve.nodekit import until

from headrace.core.errors import ProjectError
from headrace.core.files.lock import lock_holder
from headrace.core.processes.children import Child, describe_exit
from headrace.serve.base.lock import locked

SLEEPER = """
import signal, sys, time
from headrace.core.processes import lifeline
lifeline.end_with_parent()
print("ready", flush=True)
while True:
    time.sleep(0.01)
    if lifeline.stopping.is_set():
        print("warned", flush=True)
        break
time.sleep(60)
"""
PARENT = """
import os, sys, time
from headrace.core.processes.children import Child
child = Child("sleeper", "sleeper", {})
child.start()
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def sleeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that runs until it is ended; where it writes."""
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)
    return tmp_path / "out"


def test_a_child_that_dies_is_started_again(sleeper: Path) -> None:
    child = Child("sleeper", "sleeper", {}, sleeper)
    child.start()
    try:
        first = child.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        until(lambda: child.tend() == -signal.SIGKILL)
        assert (child.pid, child.hopeless) == (None, False)
        until(lambda: child.tend() is None and child.pid is not None)
        assert child.pid != first
        assert child.restarts == 1
        until(lambda: sleeper.read_text().endswith("ready\n"))
        child.warn()
        until(lambda: "warned" in sleeper.read_text())
    finally:
        child.ask_to_end()
        child.end(time.monotonic() + 5)
    assert child.pid is None


def test_a_child_ends_with_its_parent_even_when_that_is_killed(sleeper: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    assert parent.stdout.readline() == "ready\n"
    parent.kill()
    parent.wait()
    child.wait(10)
    assert not child.is_running()
    parent.stdout.close()


def test_a_child_that_cannot_run_is_given_up() -> None:
    child = Child("nothing", "headrace.there_is_no_such_module", {})
    child.start()
    until(lambda: child.tend() == 1)
    assert not child.hopeless
    child.code = 5
    assert child.hopeless
    assert describe_exit(1) == "ended with exit code 1"
    assert describe_exit(-9) == "was ended by SIGKILL"
    assert describe_exit(-200) == "was ended by signal 200"


def test_a_store_has_one_keeper(tmp_path: Path) -> None:
    file = tmp_path / "applier.lock"
    assert lock_holder(file) is None
    with locked(file, "applier"):
        assert lock_holder(file) == os.getpid()
        with pytest.raises(ProjectError) as raised, locked(file, "applier"):
            pass
        assert raised.value.code == "store-in-use"
        assert str(os.getpid()) in raised.value.message
    assert lock_holder(file) is None
