"""Helpers of the commands about positions: checks of flow names, and output of lags and plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.terminal.confirm import confirm
from headrace.cli.terminal.output import printer, usage_error
from headrace.core.errors import ProjectError, unknown_flow
from headrace.core.lazy import lazy_modules

if TYPE_CHECKING:
    from headrace.engine.positions import rewind
    from headrace.engine.positions.rewind import Rewinder
    from headrace.engine.positions.rewind_plan import RewindPlan
    from headrace.engine.state.state import StateDir
    from headrace.plan import planner
    from headrace.project.loader import Project
else:
    rewind, planner = lazy_modules("headrace.engine.positions.rewind", "headrace.plan.planner")

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def one_flow(flows: Sequence[str], command: str) -> str:
    """Return the only flow. Raises a usage error unless there is exactly one."""
    if len(flows) != 1:
        raise usage_error(f"{command} takes exactly one flow, not {len(flows)}", f"headrace {command} FLOW")
    return flows[0]


def known_flow(project: Project, name: str) -> str:
    """Return the name. Raises ProjectError `unknown-flow` if the project has no such flow."""
    if name not in project.spec.flows:
        raise unknown_flow(name, project.spec.flows)
    return name


def known_flows(project: Project, names: Sequence[str]) -> list[str]:
    """Return the names, or all flows when none is named. Raises ProjectError `unknown-flow`."""
    return [known_flow(project, name) for name in names] or list(project.spec.flows)


def rewinder(project: Project, state: StateDir, flow: str) -> Rewinder:
    flow_plan = planner.make_plan(project, (flow,)).flow(flow)
    return rewind.Rewinder(flow_plan, planner.make_plan(project), state, project.context)


def carry_out(rewinder: Rewinder, plan: RewindPlan, *, dry_run: bool, yes: bool, json: bool) -> None:
    """Show the plan, ask for confirmation, execute it, and print the command that undoes it."""
    if not json:
        for line in plan_lines(plan):
            printer.data(line)
    if dry_run:
        if json:
            printer.document({**plan.to_json(), "done": False, "new_generation": None})
        return
    again = "records" if plan.again is None else f"{plan.again:,} records"
    sinks = ", ".join(sink for sink, _ in plan.effects)
    confirm(f"Move flow '{plan.flow.name}' to {plan.to}, replay {again} into {sinks}.", yes, word=plan.flow.name)
    generation = rewinder.execute(plan)
    try:
        rewinder.announce()
    except ProjectError as error:
        printer.note(f"note: the consumer group moves when the flow runs next: {error.message}")
    if json:
        printer.document({**plan.to_json(), "done": True, "new_generation": generation.id})
    else:
        printer.note(f"flow '{plan.flow.name}' continues as generation {generation.id} at its next run")
    if plan.current is not None:
        printer.note(f"undo: headrace rewind {plan.flow.name} --to {plan.current.id}")


def plan_lines(plan: RewindPlan) -> list[str]:
    rows = [["stream", "partition", "from", "to", "records"]]
    for move in plan.moves:
        where = f"{move.topic}:{move.partition}" if move.topic else "all"
        rows.append([move.stream, where, shown(move.before), _to(move.after, plan), _signed(move.again)])
    lines = [f"flow {plan.flow.name}: to {plan.to}", *(f"  {line}" for line in aligned(rows)), "effects:"]
    lines += [f"  {sink}: {effect}" for sink, effect in plan.effects]
    return [*lines, *(f"warning: {warning}" for warning in plan.warnings)]


def _to(after: int | None, plan: RewindPlan) -> str:
    return "beginning" if after is None and plan.copy is None else shown(after)


def _signed(records: int | None) -> str:
    """Records that are read again have a minus, because the position goes back; skipped ones have a plus."""
    return "–" if records is None else f"{-records:+,}" if records else "0"


def shown(value: Any) -> str:
    """Format a number; an unknown one is a dash."""
    if value is None:
        return "–"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align rows in columns: the first two to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
