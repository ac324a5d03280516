"""How `plan` and `run` handle flows that have changed since their last start."""

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
class NewGenerations:
    """The options of `run` for new generations of flows."""

    flows: tuple[str, ...] = ()
    start_at: str | None = None
    """Where they start to read: "start" or "current"."""
    beside: bool = False
    """Whether the running generations continue until the new ones have caught up."""

    def check(self, until_caught_up: bool) -> None:
        """Raise a usage error for options that exclude each other."""
        if self.start_at not in (None, "start", "current"):
            raise usage_error(f"--from: '{self.start_at}' is neither 'start' nor 'current'")
        if self.start_at is not None and not self.flows:
            raise usage_error("--from needs a new generation", "add --new-generation FLOW")
        if not self.beside:
            return
        if not self.flows:
            raise usage_error("--beside needs a new generation", "add --new-generation FLOW")
        if self.start_at == "current":
            raise usage_error(
                "a generation that starts at the current position has nothing to catch up with",
                "leave out --beside, or --from current",
            )
        if until_caught_up:
            raise usage_error(
                "--until-caught-up ends before a candidate generation can take over", "leave out one of the two"
            )


def changes_of(project: Project, state: StateDir, plan: Plan) -> dict[str, FlowChange]:
    """Compare every flow of a plan with its current or candidate generation."""
    return {
        flow.name: supervise_candidate.candidate_change(project, state, flow)
        or upgrade.detect_change(project, state, flow)
        for flow in plan.flows
    }


def require_safe(project: Project, changes: Sequence[FlowChange]) -> None:
    """Raise one error for all flows that cannot continue after their change."""
    refusals = (
        supervise_candidate.candidate_mismatch(project, change) or upgrade.change_error(project, change)
        for change in changes
    )
    errors = [error for error in refusals if error is not None]
    if errors:
        raise ProjectErrors(errors) if len(errors) > 1 else errors[0]


def settle_changes(
    project: Project, state: StateDir, plan: Plan, options: NewGenerations, until_caught_up: bool = False
) -> None:
    """Create the requested new generations before a start. Raises an error for flows that need a new generation."""
    options.check(until_caught_up)
    for name in options.flows:
        if name not in (known := [flow.name for flow in plan.flows]):
            raise unknown_flow(name, known, "flows that are run")
        state.require_no_candidate(name)
    changes = changes_of(project, state, plan)
    require_safe(project, [change for name, change in changes.items() if name not in options.flows])
    for name in dict.fromkeys(options.flows):
        if options.beside:
            _start_candidate(project, state, plan, changes[name])
        else:
            _start_new(project, state, changes[name], "current" if options.start_at == "current" else "start")
    for change in changes.values():
        if change.flow.name not in options.flows:
            _report(state, change, until_caught_up)


def _report(state: StateDir, change: FlowChange, until_caught_up: bool) -> None:
    name = change.flow.name
    candidate = state.generations(name).candidate()
    if candidate is not None and until_caught_up:
        printer.note(f"{name}: {candidate.id} is not built further: this needs a run without --until-caught-up")
    elif candidate is not None:
        printer.note(f"{name}: {candidate.id} continues to be built as a candidate")
    for reason in change.verdict.reasons if change.verdict.kind == "safe" else ():
        printer.note(f"{name}: {reason}")


def _start_new(project: Project, state: StateDir, change: FlowChange, start_at: StartFrom) -> None:
    if change.generation is None:
        return  # its first start is a new generation
    for sink, effect in upgrade.new_generation_effects(project, change, start_at):
        printer.note(f"{change.flow.name}: {sink}: {effect}")
    if start_at == "current" and change.flow.state:
        printer.note(f"{change.flow.name}: the state is discarded: open windows and joins start empty")
    generation = upgrade.start_new_generation(project, state, change, start_at)
    place = "at the current position" if start_at == "current" else "from the start of its sources"
    printer.note(f"{change.flow.name}: new generation {generation.id}, {place}; {change.generation.id} is kept")


def _start_candidate(project: Project, state: StateDir, plan: Plan, change: FlowChange) -> None:
    current = state.generations(change.flow.name).current()
    if current is None or not current.checkpoint.begun():
        _start_new(project, state, change, "start")  # no running generation has to continue
        return
    for sink, effect in supervise_candidate.candidate_effects(project, state, change):
        printer.note(f"{change.flow.name}: {sink}: {effect}")
    for warning in supervise_candidate.candidate_warnings(project, plan, change.flow):
        printer.note(f"{change.flow.name}: warning: {warning}")
    generation = supervise_candidate.start_candidate(project, state, change)
    printer.note(
        f"{change.flow.name}: candidate {generation.id} is built while {current.id} runs, until it has caught up"
    )
