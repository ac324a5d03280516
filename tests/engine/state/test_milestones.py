"""Milestones: announced to observers; the planted observer kills the engine at the one that the environment names."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest
from tests.faults.planting import planted_environment
from tests.faults.scene import await_true

from headrace.engine.state import milestones

# prints the pid of a child in a process group of its own, then reaches a milestone
ENGINE = """
import subprocess, sys
from headrace.engine.state import milestones
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
print(child.pid, flush=True)
milestones.reach("between_sinks", "orders", 3)
child.kill()
print("alive")
"""


def run_engine(crash: str | None) -> subprocess.CompletedProcess[str]:
    env = planted_environment(crash)
    return subprocess.run([sys.executable, "-c", ENGINE], env=env, capture_output=True, text=True, check=False)


def test_observers_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milestones, "_observers", [])
    milestones.reach("before_batch", "orders", 2)
    reached: list[tuple[str, str, int]] = []
    milestones.observe(lambda *milestone: reached.append(milestone))
    milestones.reach("between_sinks", "orders", 3)
    assert reached == [("between_sinks", "orders", 3)]


@pytest.mark.parametrize("crash", [None, "between_sinks:2", "after_sinks:3", "between_sinks:3:bookings", ""])
def test_the_engine_passes_other_milestones(crash: str | None) -> None:
    done = run_engine(crash)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "alive"


@pytest.mark.parametrize("crash", ["between_sinks:3", "between_sinks:3:orders"])
def test_the_engine_dies_at_the_milestone_with_all_its_children(crash: str) -> None:
    done = run_engine(crash)
    assert done.returncode == -9, done.stderr
    (child,) = done.stdout.split()
    # it was killed before its parent, but the kernel may remove it later
    assert await_true(lambda: _is_gone(int(child)), 60)


def _is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
