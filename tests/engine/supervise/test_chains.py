"""Who waits for whom, and who runs again, until all have caught up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace.core.errors import ProjectError
from headrace.engine.supervise.chains import FeedChain

UNCOUNTED = {"numOutputRows": -1}
HAD_ROWS = {"numInputRows": 3, "sink": UNCOUNTED}
NO_ROWS = {"numInputRows": 0, "sink": UNCOUNTED}


def run(name: str, state: str = "stopped", **more: Any) -> Any:
    known = {"error": None, "stop_order": None, "done": state in ("stopped", "failed"), **more}
    return SimpleNamespace(plan=SimpleNamespace(name=name), state=state, **known)


def test_a_flow_waits_for_those_before_it() -> None:
    chain = FeedChain({"b": frozenset({"a"})}, {})
    assert chain.is_waiting("b", [run("a", "running"), run("b", "waiting")])
    assert not chain.is_waiting("b", [run("a"), run("b", "waiting")])
    assert not chain.is_waiting("b", [run("a", "failed", error=ProjectError("x", "x"))])
    assert not chain.is_waiting("a", [run("b", "running")])


def test_a_circle_runs_until_nobody_has_written() -> None:
    chain = FeedChain({"after": frozenset({"a", "b"})}, {"a": frozenset({"b"}), "b": frozenset({"a"})})
    for name in ("a", "b"):
        chain.note_start(name)
    chain.note_batches("a", [HAD_ROWS])
    assert chain.must_rerun(run("b"))
    assert not chain.must_rerun(run("a"))
    assert chain.is_waiting("after", [run("a"), run("b")])
    chain.note_start("b")
    chain.note_batches("b", [NO_ROWS])
    assert not chain.must_rerun(run("a"))
    assert not chain.must_rerun(run("b"))
    assert not chain.is_waiting("after", [run("a"), run("b")])
    # rows that come out without any that went in: a window that closes
    chain.note_batches("b", [{"numInputRows": 0, "observedMetrics": {"output": {"rows": 2}}}])
    assert chain.must_rerun(run("a"))


def test_what_failed_or_was_stopped_does_not_run_again() -> None:
    chain = FeedChain({}, {"a": frozenset({"a"})})
    chain.note_start("a")
    chain.note_batches("a", [HAD_ROWS])
    assert chain.must_rerun(run("a"))
    assert not chain.must_rerun(run("a", "failed", error=ProjectError("x", "x")))
    assert not chain.must_rerun(run("a", stop_order="asked"))
    assert not chain.must_rerun(run("a", "running"))
