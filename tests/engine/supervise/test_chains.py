"""Who waits for whom, and who runs again, until all have caught up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace.core.errors import ProjectError
from headrace.engine.supervise.chains import Chain

UNCOUNTED = {"numOutputRows": -1}
HAD_ROWS = {"numInputRows": 3, "sink": UNCOUNTED}
NO_ROWS = {"numInputRows": 0, "sink": UNCOUNTED}


def run(name: str, state: str = "stopped", **more: Any) -> Any:
    known = {"error": None, "stop": None, "done": state in ("stopped", "failed"), **more}
    return SimpleNamespace(plan=SimpleNamespace(name=name), state=state, **known)


def test_a_flow_waits_for_those_before_it() -> None:
    chain = Chain({"b": frozenset({"a"})}, {})
    assert chain.is_waiting("b", [run("a", "running"), run("b", "waiting")])
    assert not chain.is_waiting("b", [run("a"), run("b", "waiting")])
    assert not chain.is_waiting("b", [run("a", "failed", error=ProjectError("x", "x"))])
    assert not chain.is_waiting("a", [run("b", "running")])


def test_a_circle_runs_until_nobody_has_written() -> None:
    chain = Chain({"after": frozenset({"a", "b"})}, {"a": frozenset({"b"}), "b": frozenset({"a"})})
    for name in ("a", "b"):
        chain.begins(name)
    chain.takes("a", [HAD_ROWS])
    assert chain.is_fed(run("b"))
    assert not chain.is_fed(run("a"))
    assert chain.is_waiting("after", [run("a"), run("b")])
    chain.begins("b")
    chain.takes("b", [NO_ROWS])
    assert not chain.is_fed(run("a"))
    assert not chain.is_fed(run("b"))
    assert not chain.is_waiting("after", [run("a"), run("b")])
    # rows that come out without any that went in: a window that closes
    chain.takes("b", [{"numInputRows": 0, "observedMetrics": {"output": {"rows": 2}}}])
    assert chain.is_fed(run("a"))


def test_what_failed_or_was_stopped_does_not_run_again() -> None:
    chain = Chain({}, {"a": frozenset({"a"})})
    chain.begins("a")
    chain.takes("a", [HAD_ROWS])
    assert chain.is_fed(run("a"))
    assert not chain.is_fed(run("a", "failed", error=ProjectError("x", "x")))
    assert not chain.is_fed(run("a", stop="asked"))
    assert not chain.is_fed(run("a", "running"))
