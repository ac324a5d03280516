"""Sinks show what they hold back when their flow has caught up, not before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.core.endpoints import Endpoint
from headrace.core.schema import from_ddl
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.state.state import StateDir
from headrace.engine.supervise.background import Notes
from headrace.engine.supervise.flow_run import FlowRun
from headrace.engine.supervise.publish_caught_up import has_read_all, publish_if_caught_up
from headrace.log.folder import LogFolder
from headrace.plan.planner import make_plan
from headrace.project.loader import load
from headrace.sinks.endpoint import EndpointSink, _KnownVersion

PROJECT = """
project: shop
streams: {made: {source: {type: generate, fields: {id: {sequence: "{}"}}}}}
flows: {orders: {sql: SELECT id FROM made, sinks: [{type: endpoint, key: id}]}}
"""


def report(*sources: tuple[str | None, str | None]) -> dict[str, Any]:
    return {"sources": [{"endOffset": end, "latestOffset": newest} for end, newest in sources]}


@pytest.mark.parametrize(
    ("sources", "all_read"),
    [
        ([], False),
        ([('{"t":{"0":5}}', '{"t":{"0":5}}')], True),
        ([('{"t":{"0":5}}', '{"t":{"0":6}}')], False),
        ([("1", "1"), ("2", "3")], False),
        ([("1", None)], False),
        ([("1", "null")], False),
    ],
)
def test_a_batch_tells_whether_it_has_read_all(sources: list[tuple[str | None, str | None]], all_read: bool) -> None:
    assert has_read_all(report(*sources)) is all_read


@pytest.fixture
def waiting(tmp_path: Path) -> tuple[FlowRun, FlowStarter, LogFolder]:
    """A flow that has begun to fill a second version of its endpoint."""
    (tmp_path / "headrace.yaml").write_text(PROJECT)
    project = load(tmp_path, environment={})
    plan = make_plan(project)
    logs = LogFolder(project.context.log_path)
    logs.define(Endpoint("orders", from_ddl("id string, old int"), key=("id",)))
    now = Endpoint("orders", from_ddl("id string"), key=("id",))
    run = FlowRun(plan.flow("orders"))
    sink = run.plan.sinks[0].sink
    assert isinstance(sink, EndpointSink)
    version = logs.settle(now)
    sink._place.found = _KnownVersion(now, "g2", version, logs.log(version))
    state = StateDir(project.context.state_path)
    return run, FlowStarter(project, state, None), logs  # type: ignore[arg-type]  # nothing is started


def test_a_new_version_is_served_when_the_flow_has_caught_up(waiting: tuple[FlowRun, FlowStarter, LogFolder]) -> None:
    run, starter, logs = waiting
    notes = Notes()
    publish_if_caught_up(run, starter, notes)
    publish_if_caught_up(run, starter, notes, [report(("1", "2"))])
    assert logs.served("orders") == 1
    run.is_candidate = True
    run.caught_up = True
    publish_if_caught_up(run, starter, notes)
    assert logs.served("orders") == 1
    run.is_candidate = False
    publish_if_caught_up(run, starter, notes)
    assert logs.served("orders") == 2
    logs.serve("orders", 1)
    publish_if_caught_up(run, starter, notes)
    assert logs.served("orders") == 1, "what somebody wants stays"


def test_a_flow_that_is_never_idle_has_caught_up_with_a_batch(waiting: tuple[FlowRun, FlowStarter, LogFolder]) -> None:
    run, starter, logs = waiting
    run.caught_up = False
    publish_if_caught_up(run, starter, Notes(), [report(("1", "2")), report(("2", "2"))])
    assert logs.served("orders") == 2


def test_what_cannot_be_shown_is_noted(
    waiting: tuple[FlowRun, FlowStarter, LogFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, starter, logs = waiting
    run.caught_up = True

    def unavailable(self: LogFolder, name: str, builder: str | None = None) -> None:
        raise OSError("no answer")

    notes = Notes()
    with monkeypatch.context() as patched:
        patched.setattr(LogFolder, "publish", unavailable)
        publish_if_caught_up(run, starter, notes)
    assert run.plan.sinks[0].sink.has_unpublished
    publish_if_caught_up(run, starter, notes)
    assert logs.served("orders") == 2
