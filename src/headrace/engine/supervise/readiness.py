"""Decides whether the inputs of a flow exist, so that it can start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from headrace.core.errors import Exit, ProjectError
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.inputs.lake import is_table
from headrace.engine.supervise.flow_run import FlowRun
from headrace.engine.tables.table_logs import FlowTables, all_captured
from headrace.plan.model import FlowPlan, LakeInput, StandingInput


def inputs_ready(
    flow: FlowPlan, runs: Sequence[FlowRun], starter: FlowStarter, is_over: Callable[[FlowRun], bool]
) -> bool:
    """Whether a flow can start.

    A flow that reads the lake table of another flow waits for that table and, in a run until caught up, for the end of
    the other flow. In a run until caught up a view waits until its tables are captured. A report always waits until its
    tables are complete.
    """
    context = starter.project.context
    tables = FlowTables.of(flow, context)
    if tables.groups and starter.until_caught_up and not all_captured(flow, context):
        return False
    if flow.is_report and not tables.complete():
        return False
    for name, path in _lake_tables(flow):
        upstream = next((run for run in runs if run.plan.name == name), None)
        if upstream is not None and starter.until_caught_up and not upstream.done:
            return False
        if not is_table(path):
            if upstream is None or is_over(upstream):
                raise ProjectError(
                    "lake-missing",
                    f"flow '{flow.name}' reads the lake table of '{name}', which does not exist",
                    hint=f"run '{name}' first",
                    exit_code=Exit.NOT_FOUND,
                )
            return False
    return True


def _lake_tables(flow: FlowPlan) -> Iterator[tuple[str, str]]:
    for item in flow.inputs:
        if isinstance(item, LakeInput | StandingInput) and item.path is not None:
            yield item.name, item.path
