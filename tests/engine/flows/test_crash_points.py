"""The crash points: silent unless the environment names them, and then final."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest
from tests.faults.scene import await_true

from headrace.engine.flows import crash_points

# says the pid of a child in a process group of its own, then comes to a point
ENGINE = """
import subprocess, sys
from headrace.engine.flows import crash_points
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
print(child.pid, flush=True)
crash_points.reach("between_sinks", "orders", 3)
child.kill()
print("alive")
"""


@pytest.mark.parametrize("asked", [None, "between_sinks:2", "after_sinks:3", "between_sinks:3:bookings", ""])
def test_other_points_are_passed(monkeypatch: pytest.MonkeyPatch, asked: str | None) -> None:
    if asked is not None:
        monkeypatch.setenv("HEADRACE_CRASH", asked)
    crash_points.reach("between_sinks", "orders", 3)


@pytest.mark.parametrize("asked", ["between_sinks:3", "between_sinks:3:orders"])
def test_the_engine_dies_at_the_point_with_all_that_it_started(asked: str) -> None:
    env = {**os.environ, "HEADRACE_CRASH": asked}
    done = subprocess.run([sys.executable, "-c", ENGINE], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    (child,) = done.stdout.split()
    # it was killed before its parent was, but the kernel takes its time
    assert await_true(lambda: _is_gone(int(child)), 60)


def _is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
