"""What `plan` and `run` say about flows that have changed since they were last started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.cli.output import printer, usage_error
from headrace.core.errors import ProjectErrors, unknown_flow

if TYPE_CHECKING:
    from headrace.engine.state import StateDir
    from headrace.engine.upgrade import Change, From
    from headrace.plan.model import Plan
    from headrace.project.loader import Project


def changes_of(project: Project, state: StateDir, plan: Plan) -> dict[str, Change]:
    """Every flow of a plan against its generation."""
    from headrace.engine.upgrade import change_of

    return {flow.name: change_of(project, state, flow) for flow in plan.flows}


def require_safe(project: Project, changes: Sequence[Change]) -> None:
    """Refuse, all at once, the flows that cannot go on as they are."""
    from headrace.engine.upgrade import refusal

    errors = [error for change in changes if (error := refusal(project, change)) is not None]
    if errors:
        raise ProjectErrors(errors) if len(errors) > 1 else errors[0]


def settle_changes(project: Project, state: StateDir, plan: Plan, anew: Sequence[str], begin: str | None) -> None:
    """Before anything starts: make the new generations that were asked for, refuse what would need one."""
    if begin not in (None, "start", "current"):
        raise usage_error(f"--from: '{begin}' is neither 'start' nor 'current'")
    if begin is not None and not anew:
        raise usage_error(
            "--from says where a new generation begins, and none is asked for", "add --new-generation FLOW"
        )
    changes = changes_of(project, state, plan)
    for name in anew:
        if name not in changes:
            raise unknown_flow(name, changes, "flows that are run")
    require_safe(project, [change for name, change in changes.items() if name not in anew])
    for name in dict.fromkeys(anew):
        _begin_anew(project, state, changes[name], "current" if begin == "current" else "start")
    for change in changes.values():
        if change.flow.name not in anew and change.verdict.kind == "safe":
            for reason in change.verdict.reasons:
                printer.note(f"{change.flow.name}: {reason}")


def _begin_anew(project: Project, state: StateDir, change: Change, begin: From) -> None:
    from headrace.engine.upgrade import begin_anew, effects

    if change.generation is None:
        return  # its first start is a new generation
    for sink, effect in effects(project, change, begin):
        printer.note(f"{change.flow.name}: {sink}: {effect}")
    if begin == "current" and change.flow.state:
        printer.note(f"{change.flow.name}: what was kept is left behind: windows and joins that were open begin empty")
    made = begin_anew(project, state, change, begin)
    place = "where the old one is" if begin == "current" else "from the start of its sources"
    printer.note(f"{change.flow.name}: new generation {made.id}, {place}; {change.generation.id} is kept")
