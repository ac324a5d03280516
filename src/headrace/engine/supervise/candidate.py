"""A candidate generation: start it, publish it, abandon it.

A candidate is built in parallel to the running generation, which continues with the definition stored next to its
manifest. The candidate has a separate pointer and writes to separate targets, or nothing. The switch (see
`candidate_switch`) sets a mark, publishes the rows in every sink and renames one pointer. Once the mark is set, the
switch cannot be undone: after a crash the next start finishes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.core.capabilities import BuildsCandidate, candidate_effect, lake_paths
from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError
from headrace.core.files.state_files import write_atomically
from headrace.engine.flows.flow import candidate_for
from headrace.engine.positions.positions import input_positions
from headrace.engine.positions.upgrade import FlowChange, detect_change, generation_reason, save_definition
from headrace.engine.state import milestones
from headrace.engine.state.generations import Generation
from headrace.engine.state.schemas import infer_schema
from headrace.engine.state.state import StateDir
from headrace.plan.compare import ChangeVerdict
from headrace.plan.model import FlowPlan, LakeInput, Plan, StreamInput
from headrace.plan.planner import make_plan
from headrace.project.loader import Project, load_stored_definition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PUBLISH = "publish.json"


@dataclass(frozen=True)
class FlowDefinition:
    """A flow as one of its generations last ran it, with the project of that time."""

    project: Project
    flow: FlowPlan


def load_definition(project: Project, state: StateDir, flow: str, generation: Generation) -> FlowDefinition:
    if not generation.definition.is_file():
        raise ProjectError(
            "beside-no-definition",
            f"generation {generation.id} of flow '{flow}' was started before definitions were stored: it cannot "
            "continue unchanged",
            hint=f"revert the change, run the flow once and try again; or: headrace run --new-generation {flow}",
            exit_code=Exit.CONFLICT,
        )
    try:
        text = generation.definition.read_text(encoding="utf-8")
        stored = load_stored_definition(project, text, f"{generation.id}/{generation.definition.name}")
        plan = make_plan(stored, (flow,), lambda name, spec: infer_schema(stored, state, name, spec)).flow(flow)
    except ProjectError as error:
        raise _definition_changed(flow, generation, f"{error.message} ({error.code})") from error
    return FlowDefinition(stored, plan)


def running_definition(project: Project, state: StateDir, flow: str) -> FlowDefinition:
    """The definition with which the current generation continues while a candidate is built; an error if it changed."""
    current = state.generations(flow).current()
    assert current is not None, "a candidate is built for a flow that has a generation"
    definition = load_definition(project, state, flow, current)
    verdict = detect_change(definition.project, state, definition.flow).verdict
    if verdict.kind != "safe" or verdict.reasons:
        raise _definition_changed(flow, current, "; ".join(verdict.reasons) or verdict.words)
    return definition


def _definition_changed(flow: str, generation: Generation, why: str) -> ProjectError:
    return ProjectError(
        "beside-definition-changed",
        f"generation {generation.id} of flow '{flow}' cannot continue unchanged: {why}",
        hint=f"restore what it needs, or start over without --beside: headrace run --new-generation {flow}",
        exit_code=Exit.CONFLICT,
    )


def candidate_change(project: Project, state: StateDir, flow: FlowPlan) -> FlowChange | None:
    """The change of a flow against its candidate; None if it has no candidate."""
    generations = state.generations(flow.name)
    candidate, current = generations.candidate(), generations.current()
    if candidate is None or current is None:
        return None
    change = detect_change(project, state.with_candidate(flow.name), flow)
    if change.generation != candidate:  # the project file is what the running generation was started with
        change = replace(change, verdict=ChangeVerdict("new_generation", change.verdict.reasons), generation=candidate)
    return replace(change, running=current.id)


def candidate_mismatch(project: Project, change: FlowChange) -> ProjectError | None:
    """An error if the candidate is built for another definition of the flow, otherwise None."""
    if change.running is None or change.generation is None or change.verdict.kind in ("first", "safe"):
        return None
    flow, why = change.flow.name, "; ".join(change.verdict.reasons)
    return ProjectError(
        "candidate-other",
        f"candidate {change.generation.id} is built for another definition of flow '{flow}': {why}",
        hint=f"restore the file, or abandon the candidate: headrace generations abandon {flow}",
        where=project.origin("flows", flow),
        exit_code=Exit.CONFLICT,
    )


def candidate_effects(project: Project, state: StateDir, change: FlowChange) -> list[tuple[str, str]]:
    """What a candidate means for each sink; raises a ProjectError if none can be built."""
    flow = change.flow
    current = running_definition(project, state, flow.name).flow
    for version in (current, flow):
        _require_comparable(version, project.context)
    try:
        return sink_effects(flow, "NEW", project.context)
    except ProjectError as error:
        raise error.at(project.origin("flows", flow.name, "sinks")) from None


def sink_effects(flow: FlowPlan, generation: str, context: Context) -> list[tuple[str, str]]:
    """What the switch does to each sink; raises a ProjectError if a sink does not support it."""
    candidates = ((step.sink, candidate_for(flow, step, generation, context)) for step in flow.sinks)
    return [(sink.label, candidate_effect(sink, candidate)) for sink, candidate in candidates]


def _require_comparable(flow: FlowPlan, context: Context) -> None:
    why = next(_obstacles(flow, context), None)
    if why is not None:
        raise ProjectError(
            "beside-unsupported",
            f"flow '{flow.name}' does not support a candidate generation: {why}",
            hint=f"start over without --beside: headrace run --new-generation {flow.name}",
            exit_code=Exit.CONFLICT,
        )


def _obstacles(flow: FlowPlan, context: Context) -> Iterator[str]:
    if flow.spec.mode != "micro_batch":
        yield f"its mode is {flow.spec.mode}, and only a micro_batch flow can end a batch at a given position"
    inputs = input_positions(flow, context)  # does not contact the sources
    yield from (f"{known.label} has no comparable positions" for known in inputs.values() if not known.comparable)
    for item in flow.all_inputs():
        if isinstance(item, StreamInput | LakeInput) and flow.state and item.event_time and item.event_time.idle:
            yield f"the watermark of {item.name} follows the clock while it is idle, so two generations would differ"


def start_candidate(project: Project, state: StateDir, change: FlowChange) -> Generation:
    """Create a candidate that reads the sources from their start. The running generation is not affected."""
    generations = state.generations(change.flow.name)
    candidate = generations.make(generation_reason(change), shape=change.shape, pins=change.pins)
    save_definition(candidate, project)
    generations.set_candidate(candidate)
    return candidate


def candidate_warnings(project: Project, plan: Plan, flow: FlowPlan) -> Iterator[str]:
    """Consequences that an operator should know before a candidate is built."""
    paths = {project.context.path(path) for path in lake_paths(step.sink for step in flow.sinks)}
    for other in plan.flows:
        if any(isinstance(item, LakeInput) and item.path in paths for item in other.all_inputs()):
            yield f"flow '{other.name}' reads the table of this flow: it stops at the switch and needs a new generation"
    inputs = input_positions(flow, project.context)
    try:
        expired = [split for known in inputs.values() for split in known.measure(None) if split.start > 0]
    finally:
        for known in inputs.values():
            known.close()
    for split in (split for split in expired if split.counts_records):
        yield f"{split.topic}:{split.partition}: records before {split.start} have expired: their rows will be missing"


def is_publishing(candidate: Generation) -> bool:
    """Whether the switch to a candidate has started and can no longer be undone."""
    return (candidate.folder / _PUBLISH).is_file()


def mark_publishing(candidate: Generation, instead_of: Generation) -> None:
    """Start the switch. Both generations have stopped after a batch that ends at the same positions."""
    done = candidate.checkpoint.committed()
    assert done is not None, "a candidate that has caught up has committed a batch"
    mark = {"instead_of": instead_of.id, "batch": done.batch_id}
    write_atomically(candidate.folder / _PUBLISH, json.dumps(mark).encode())


def publish_candidate(flow: FlowPlan, state: StateDir, context: Context, spark: SparkSession) -> None:
    """Publish the candidate's rows in every sink, then make it the current generation. Idempotent after a crash."""
    generations = state.generations(flow.name)
    candidate = generations.candidate()
    assert candidate is not None, "only a candidate is published"
    last: int = json.loads((candidate.folder / _PUBLISH).read_text(encoding="utf-8"))["batch"]
    for number, step in enumerate(flow.sinks):
        if number:
            milestones.reach("between_publishes", flow.name, 0)
        if isinstance(step.sink, BuildsCandidate):
            step.sink.publish(candidate_for(flow, step, candidate.id, context, last), spark)
    milestones.reach("published", flow.name, 0)
    generations.switch(candidate)
    clean_up_after_switch(flow, state, context)


def clean_up_after_switch(flow: FlowPlan, state: StateDir, context: Context) -> None:
    """Remove the candidate's separate targets and the mark after a switch. Called again at every start."""
    generations = state.generations(flow.name)
    current = generations.current()
    if current is None or not is_publishing(current):
        return
    generations.set_candidate(None)
    _remove_targets(flow, current, context)
    (current.folder / _PUBLISH).unlink()


def require_abandonable(state: StateDir, flow: str) -> Generation:
    """The candidate of a flow; an error if it has none or if the switch to it has started."""
    candidate = state.generations(flow).candidate()
    if candidate is None:
        raise ProjectError(
            "no-candidate",
            f"flow '{flow}' has no candidate generation",
            hint=f"list its generations: headrace generations list {flow}",
            exit_code=Exit.NOT_FOUND,
        )
    if is_publishing(candidate):
        raise ProjectError(
            "candidate-publishing",
            f"the switch of flow '{flow}' to generation {candidate.id} has started: sinks may have published its rows",
            hint="run the project to finish the switch",
            exit_code=Exit.CONFLICT,
        )
    return candidate


def abandon_candidate(project: Project, state: StateDir, flow: str) -> None:
    """Delete the candidate of a flow and everything that it wrote."""
    candidate = require_abandonable(state, flow)
    definition = load_definition(project, state, flow, candidate)
    state.generations(flow).set_candidate(None)  # first: a candidate that resumed without its targets would miss rows
    _remove_targets(definition.flow, candidate, project.context)
    state.generations(flow).remove(candidate)


def delete_generation(project: Project, state: StateDir, flow: str, generation: Generation) -> None:
    """Delete an unused generation, also a candidate whose abandoning was interrupted."""
    if generation.definition.is_file() and generation.manifest.parent is not None:
        _remove_targets(load_definition(project, state, flow, generation).flow, generation, project.context)
    state.generations(flow).remove(generation)


def _remove_targets(flow: FlowPlan, generation: Generation, context: Context) -> None:
    for step in flow.sinks:
        if isinstance(step.sink, BuildsCandidate):
            step.sink.drop_candidate(candidate_for(flow, step, generation.id, context))
