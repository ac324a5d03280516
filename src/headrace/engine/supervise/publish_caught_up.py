"""Publishes rows that sinks hold back until their flow has caught up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.core.capabilities import PublishesWhenCaughtUp
from headrace.core.errors import ProjectError
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.inputs.backfill import is_pending
from headrace.engine.supervise.background import Notes
from headrace.engine.supervise.flow_run import FlowRun


def publish_if_caught_up(
    run: FlowRun, starter: FlowStarter, notes: Notes, reports: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Call the sinks that hold rows back, if the last batch has read everything or the flow waits for more.

    A candidate does not publish before the switch, and a flow that still reads history has not caught up.
    """
    able = (step.sink for step in run.plan.sinks if isinstance(step.sink, PublishesWhenCaughtUp))
    waiting = [sink for sink in able if sink.has_unpublished]
    if not waiting or run.is_candidate or not (run.caught_up or (reports and has_read_all(reports[-1]))):
        return
    if is_pending(starter.state.current(run.plan.name)):
        return
    try:
        starter.state.fence.check()
        for sink in waiting:
            sink.publish_caught_up(starter.project.context)
    except (OSError, ProjectError) as error:  # tried again at the next poll
        notes.add(f"sinks of {run.name}", str(error))


def has_read_all(report: Mapping[str, Any]) -> bool:
    """Whether a batch has read everything that its sources had when it started, as far as they report it.

    A flow that receives records all the time never waits for data, so its state does not show this.
    """
    sources = report.get("sources") or []
    return bool(sources) and all(_is_at_end(source) for source in sources)


def _is_at_end(source: Mapping[str, Any]) -> bool:
    newest = source.get("latestOffset")
    return newest not in (None, "", "null") and source.get("endOffset") == newest
