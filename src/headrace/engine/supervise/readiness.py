"""Whether what a flow reads is there, so that it can begin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from headrace.core.errors import Exit, ProjectError
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.inputs.lake import is_table
from headrace.engine.supervise.flow_run import FlowRun
from headrace.engine.tables.table_logs import FlowTables, all_captured
from headrace.plan.model import FlowPlan, LakeInput, StandingInput


def inputs_ready(
    flow: FlowPlan, runs: Sequence[FlowRun], starter: FlowStarter, over: Callable[[FlowRun], bool]
) -> bool:
    """A flow that reads another's lake table waits for it; until caught up, for its end. So does one that reads tables
    for what their sources have, and a report always for all of them to have come whole."""
    context = starter.project.context
    tables = FlowTables.of(flow, context)
    if tables.groups and starter.until_caught_up and not all_captured(flow, context):
        return False
    if flow.is_report and not tables.complete():
        return False
    for name, path in _lakes(flow):
        upstream = next((run for run in runs if run.plan.name == name), None)
        if upstream is not None and starter.until_caught_up and not upstream.done:
            return False
        if not is_table(path):
            if upstream is None or over(upstream):
                raise ProjectError(
                    "lake-missing",
                    f"flow '{flow.name}' reads the lake table of '{name}', which is not there",
                    hint=f"run '{name}' first",
                    exit_code=Exit.NOT_FOUND,
                )
            return False
    return True


def _lakes(flow: FlowPlan) -> Iterator[tuple[str, str]]:
    for one in flow.inputs:
        if isinstance(one, LakeInput | StandingInput) and one.path is not None:
            yield one.name, one.path
