"""When a flow has caught up, its sinks show what they held back until then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.core.capabilities import PublishesWhenCaughtUp
from headrace.core.errors import ProjectError
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.inputs.backfill import is_pending
from headrace.engine.supervise.background import Notes
from headrace.engine.supervise.flow_run import FlowRun


def show_if_caught_up(
    run: FlowRun, starter: FlowStarter, notes: Notes, reports: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Tell the sinks that hold something back, if the flow's last batch has read all there was or it waits for more.

    A candidate shows nothing by itself, and one that still reads history has not come to the present.
    """
    able = (step.sink for step in run.plan.sinks if isinstance(step.sink, PublishesWhenCaughtUp))
    waiting = [sink for sink in able if sink.has_unpublished]
    if not waiting or run.is_candidate or not (run.caught_up or (reports and read_all(reports[-1]))):
        return
    if is_pending(starter.state.current(run.plan.name)):
        return
    try:
        starter.state.fence.check()
        for sink in waiting:
            sink.publish_caught_up(starter.project.context)
    except (OSError, ProjectError) as error:  # tried again after the next look
        notes.add(f"sinks of {run.name}", str(error))


def read_all(report: Mapping[str, Any]) -> bool:
    """Whether a batch has read all that its sources had when it began, as far as they tell.

    A flow that gets records all the time never waits for any.
    """
    sources = report.get("sources") or []
    return bool(sources) and all(_is_at_end(source) for source in sources)


def _is_at_end(source: Mapping[str, Any]) -> bool:
    newest = source.get("latestOffset")
    return newest not in (None, "", "null") and source.get("endOffset") == newest
