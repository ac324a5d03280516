"""What `plan` and `run` say about flows that have changed since they were last started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.cli.terminal.output import printer, usage_error
from headrace.core.errors import ProjectErrors, unknown_flow
from headrace.core.lazy import lazy_modules

if TYPE_CHECKING:
    from headrace.engine.positions import upgrade
    from headrace.engine.positions.upgrade import FlowChange, StartFrom
    from headrace.engine.state.state import StateDir
    from headrace.engine.supervise import candidate as supervise_candidate
    from headrace.plan.model import Plan
    from headrace.project.loader import Project
else:
    upgrade, supervise_candidate = lazy_modules(
        "headrace.engine.positions.upgrade", "headrace.engine.supervise.candidate"
    )


@dataclass(frozen=True)
class Anew:
    """The flows that get a new generation, and how."""

    flows: tuple[str, ...] = ()
    begin: str | None = None
    """Where they begin to read: "start" or "current"."""
    beside: bool = False
    """Whether the running generations continue until the new ones have caught up."""

    def check(self, until_caught_up: bool) -> None:
        """Refuse what has no meaning together."""
        if self.begin not in (None, "start", "current"):
            raise usage_error(f"--from: '{self.begin}' is neither 'start' nor 'current'")
        if self.begin is not None and not self.flows:
            raise usage_error(
                "--from says where a new generation begins, and none is asked for", "add --new-generation FLOW"
            )
        if not self.beside:
            return
        if not self.flows:
            raise usage_error("--beside needs a new generation", "add --new-generation FLOW")
        if self.begin == "current":
            raise usage_error(
                "a generation that begins where the old one is has nothing to catch up with",
                "leave out --beside, or --from current",
            )
        if until_caught_up:
            raise usage_error(
                "--until-caught-up ends before a candidate generation can take over", "leave out one of the two"
            )


def changes_of(project: Project, state: StateDir, plan: Plan) -> dict[str, FlowChange]:
    """Every flow of a plan against its generation, or against the one that is built for it."""
    return {
        flow.name: supervise_candidate.candidate_change(project, state, flow)
        or upgrade.detect_change(project, state, flow)
        for flow in plan.flows
    }


def require_safe(project: Project, changes: Sequence[FlowChange]) -> None:
    """Refuse the flows that cannot continue after their change, all in one error."""
    judged = (
        supervise_candidate.candidate_mismatch(project, change) or upgrade.change_error(project, change)
        for change in changes
    )
    errors = [error for error in judged if error is not None]
    if errors:
        raise ProjectErrors(errors) if len(errors) > 1 else errors[0]


def settle_changes(project: Project, state: StateDir, plan: Plan, anew: Anew, until_caught_up: bool = False) -> None:
    """Before anything starts: make the new generations that were asked for, refuse what would need one."""
    anew.check(until_caught_up)
    for name in anew.flows:
        if name not in (known := [flow.name for flow in plan.flows]):
            raise unknown_flow(name, known, "flows that are run")
        state.require_no_candidate(name)
    changes = changes_of(project, state, plan)
    require_safe(project, [change for name, change in changes.items() if name not in anew.flows])
    for name in dict.fromkeys(anew.flows):
        if anew.beside:
            _begin_beside(project, state, plan, changes[name])
        else:
            _begin_anew(project, state, changes[name], "current" if anew.begin == "current" else "start")
    for change in changes.values():
        if change.flow.name not in anew.flows:
            _tell(state, change, until_caught_up)


def _tell(state: StateDir, change: FlowChange, until_caught_up: bool) -> None:
    name = change.flow.name
    candidate = state.generations(name).candidate()
    if candidate is not None and until_caught_up:
        printer.note(f"{name}: {candidate.id} is not built any further: that needs a run without --until-caught-up")
    elif candidate is not None:
        printer.note(f"{name}: {candidate.id} continues to be built as a candidate")
    for reason in change.verdict.reasons if change.verdict.kind == "safe" else ():
        printer.note(f"{name}: {reason}")


def _begin_anew(project: Project, state: StateDir, change: FlowChange, begin: StartFrom) -> None:
    if change.generation is None:
        return  # its first start is a new generation
    for sink, effect in upgrade.new_generation_effects(project, change, begin):
        printer.note(f"{change.flow.name}: {sink}: {effect}")
    if begin == "current" and change.flow.state:
        printer.note(f"{change.flow.name}: what was kept is left behind: windows and joins that were open begin empty")
    generation = upgrade.start_new_generation(project, state, change, begin)
    place = "where the old one is" if begin == "current" else "from the start of its sources"
    printer.note(f"{change.flow.name}: new generation {generation.id}, {place}; {change.generation.id} is kept")


def _begin_beside(project: Project, state: StateDir, plan: Plan, change: FlowChange) -> None:
    current = state.generations(change.flow.name).current()
    if current is None or not current.checkpoint.begun():
        _begin_anew(project, state, change, "start")  # no running generation has to be kept up
        return
    for sink, effect in supervise_candidate.candidate_effects(project, state, change):
        printer.note(f"{change.flow.name}: {sink}: {effect}")
    for warning in supervise_candidate.candidate_warnings(project, plan, change.flow):
        printer.note(f"{change.flow.name}: warning: {warning}")
    generation = supervise_candidate.start_candidate(project, state, change)
    printer.note(
        f"{change.flow.name}: candidate {generation.id} is built while {current.id} runs, until it has caught up"
    )
