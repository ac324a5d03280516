"""A new generation built beside the running one: what it takes to begin, to publish what it made, and to give it up.

The running generation goes on with the definition it had, which is kept beside its manifest. The candidate has a
pointer of its own and writes beside the sinks, or nothing. The switch is: a mark that the candidate is to be published,
what each sink has to do, one rename of the pointer. From the mark on it is finished by whoever comes next.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError
from headrace.core.files.state_files import write_atomically
from headrace.engine.flows import crash_points
from headrace.engine.flows.flow import side_of
from headrace.engine.positions.positions import input_positions
from headrace.engine.positions.upgrade import FlowChange, change_of, define, reason_of
from headrace.engine.state.generations import Generation
from headrace.engine.state.schemas import infer_schema
from headrace.engine.state.state import StateDir
from headrace.plan.compare import ChangeVerdict
from headrace.plan.model import FlowPlan, LakeInput, Plan, StreamInput
from headrace.plan.planner import make_plan
from headrace.project.loader import Project, load_definition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PUBLISH = "publish.json"


@dataclass(frozen=True)
class Defined:
    """A flow as one of its generations was last run."""

    project: Project
    flow: FlowPlan


def defined(project: Project, state: StateDir, flow: str, generation: Generation) -> Defined:
    """What a generation was run as, from what was kept of it."""
    if not generation.definition.is_file():
        raise ProjectError(
            "beside-no-definition",
            f"generation {generation.id} of flow '{flow}' was begun before definitions were kept: it cannot go on as "
            "it was",
            hint=f"take the change back, run the flow once and try again; or: headrace run --new-generation {flow}",
            exit_code=Exit.CONFLICT,
        )
    try:
        text = generation.definition.read_text(encoding="utf-8")
        then = load_definition(project, text, f"{generation.id}/{generation.definition.name}")
        plan = make_plan(then, (flow,), lambda name, spec: infer_schema(then, state, name, spec)).flow(flow)
    except ProjectError as error:
        raise _cannot_go_on(flow, generation, f"{error.message} ({error.code})") from error
    return Defined(then, plan)


def running(project: Project, state: StateDir, flow: str) -> Defined:
    """The flow as its current generation is to go on while another is built; refused unless it is as it was."""
    current = state.generations(flow).current()
    assert current is not None, "a candidate is built beside a generation"
    found = defined(project, state, flow, current)
    verdict = change_of(found.project, state, found.flow).verdict
    if verdict.kind != "safe" or verdict.reasons:
        raise _cannot_go_on(flow, current, "; ".join(verdict.reasons) or verdict.words)
    return found


def _cannot_go_on(flow: str, generation: Generation, why: str) -> ProjectError:
    return ProjectError(
        "beside-definition-changed",
        f"generation {generation.id} of flow '{flow}' cannot go on as it was: {why}",
        hint=f"put back what it needs, or begin anew without --beside: headrace run --new-generation {flow}",
        exit_code=Exit.CONFLICT,
    )


def candidate_change(project: Project, state: StateDir, flow: FlowPlan) -> FlowChange | None:
    """The flow against its candidate, None when it has none."""
    generations = state.generations(flow.name)
    candidate, current = generations.candidate(), generations.current()
    if candidate is None or current is None:
        return None
    change = change_of(project, state.beside(flow.name), flow)
    if change.generation != candidate:  # the file is what the running one was begun with
        change = replace(change, verdict=ChangeVerdict("new_generation", change.verdict.reasons), generation=candidate)
    return replace(change, beside=current.id)


def other_than_candidate(project: Project, change: FlowChange) -> ProjectError | None:
    """The error of a flow that is not what its candidate is built for, None when it is."""
    if change.beside is None or change.generation is None or change.verdict.kind in ("first", "safe"):
        return None
    flow, why = change.flow.name, "; ".join(change.verdict.reasons)
    return ProjectError(
        "candidate-other",
        f"flow '{flow}' is not what its candidate {change.generation.id} is built for: {why}",
        hint=f"put the file back as it was, or give the candidate up: headrace generations abandon {flow}",
        where=project.origin("flows", flow),
        exit_code=Exit.CONFLICT,
    )


def effects(project: Project, state: StateDir, change: FlowChange) -> list[tuple[str, str]]:
    """What building beside means for each sink; a ProjectError says why it cannot be done."""
    flow = change.flow
    then = running(project, state, flow.name)
    for one in (then.flow, flow):
        _require_comparable(one, project.context)
    try:
        return sides(flow, "NEW", project.context)
    except ProjectError as error:
        raise error.at(project.origin("flows", flow.name, "sinks")) from None


def sides(flow: FlowPlan, generation: str, context: Context) -> list[tuple[str, str]]:
    """The sinks of a flow, and what becomes of each; a ProjectError when one cannot be switched."""
    return [(step.sink.label, step.sink.beside_effect(side_of(flow, step, generation, context))) for step in flow.sinks]


def _require_comparable(flow: FlowPlan, context: Context) -> None:
    why = next(_obstacles(flow, context), None)
    if why is not None:
        raise ProjectError(
            "beside-unsupported",
            f"no generation of flow '{flow.name}' can be built beside another: {why}",
            hint=f"begin anew without --beside: headrace run --new-generation {flow.name}",
            exit_code=Exit.CONFLICT,
        )


def _obstacles(flow: FlowPlan, context: Context) -> Iterator[str]:
    if flow.spec.mode != "micro_batch":
        yield f"its mode is {flow.spec.mode}, and only micro_batch flows end their batches where they are told"
    inputs = input_positions(flow, context)  # nothing is asked of the sources
    yield from (f"{known.label} does not tell how far a reader is" for known in inputs.values() if not known.comparable)
    for one in flow.all_inputs():
        if isinstance(one, StreamInput | LakeInput) and flow.state and one.event_time and one.event_time.idle:
            yield f"the watermark of {one.name} goes on by the clock while it is idle, so two generations would differ"


def begin_beside(project: Project, state: StateDir, change: FlowChange) -> Generation:
    """A candidate that reads the sources from their start. What runs goes on."""
    generations = state.generations(change.flow.name)
    made = generations.make(reason_of(change), shape=change.shape, pins=change.pins)
    define(made, project)
    generations.put_beside(made)
    return made


def warnings(project: Project, plan: Plan, flow: FlowPlan) -> Iterator[str]:
    """What an operator should know before a candidate is built."""
    paths = {project.context.path(step.sink.lake_path) for step in flow.sinks if step.sink.lake_path}
    for other in plan.flows:
        if any(isinstance(one, LakeInput) and one.path in paths for one in other.all_inputs()):
            yield f"flow '{other.name}' reads the table of this one: it stops at the switch, and then has to begin anew"
    inputs = input_positions(flow, project.context)
    try:
        gone = [split for known in inputs.values() for split in known.measure(None) if split.start > 0]
    finally:
        for known in inputs.values():
            known.close()
    for split in (one for one in gone if one.counts_records):
        yield (
            f"{split.topic}:{split.partition}: records before {split.start} are no longer there, so their rows will "
            "not come again"
        )


def is_publishing(candidate: Generation) -> bool:
    """Whether the switch to a candidate has begun: then there is no way back."""
    return (candidate.folder / _PUBLISH).is_file()


def begin_publishing(candidate: Generation, instead_of: Generation) -> None:
    """Decide on the switch. Both have ended their last batch at the same place, and nothing of them runs."""
    done = candidate.checkpoint.committed()
    assert done is not None, "what has caught up has done a batch"
    said = {"instead_of": instead_of.id, "batch": done.batch_id}
    write_atomically(candidate.folder / _PUBLISH, json.dumps(said).encode())


def publish(flow: FlowPlan, state: StateDir, context: Context, spark: SparkSession) -> None:
    """Let every sink show what the candidate made, and let the flow go on with it. Finishes what was cut off."""
    generations = state.generations(flow.name)
    candidate = generations.candidate()
    assert candidate is not None, "only a candidate is published"
    last: int = json.loads((candidate.folder / _PUBLISH).read_text(encoding="utf-8"))["batch"]
    for number, step in enumerate(flow.sinks):
        if number:
            crash_points.reach("between_publishes", flow.name, 0)
        step.sink.publish(side_of(flow, step, candidate.id, context, last), spark)
    crash_points.reach("published", flow.name, 0)
    generations.switch(candidate)
    tidy_after_switch(flow, state, context)


def tidy_after_switch(flow: FlowPlan, state: StateDir, context: Context) -> None:
    """Remove what a switch leaves behind: what was written beside, and the marks. Called again at every start."""
    generations = state.generations(flow.name)
    current = generations.current()
    if current is None or not is_publishing(current):
        return
    generations.put_beside(None)
    _forget(flow, current, context)
    (current.folder / _PUBLISH).unlink()


def require_abandonable(state: StateDir, flow: str) -> Generation:
    """The candidate of a flow, if there is one that can still be given up."""
    candidate = state.generations(flow).candidate()
    if candidate is None:
        raise ProjectError(
            "no-candidate",
            f"nothing is being built beside the current generation of flow '{flow}'",
            hint=f"headrace generations list {flow} shows what there is",
            exit_code=Exit.NOT_FOUND,
        )
    if is_publishing(candidate):
        raise ProjectError(
            "candidate-publishing",
            f"the switch of flow '{flow}' to generation {candidate.id} has begun: some sinks may show its rows already",
            hint="run the project, which finishes it",
            exit_code=Exit.CONFLICT,
        )
    return candidate


def abandon(project: Project, state: StateDir, flow: str) -> None:
    """Give up the candidate of a flow: what it wrote beside goes, and so does it."""
    candidate = require_abandonable(state, flow)
    made = defined(project, state, flow, candidate)
    state.generations(flow).put_beside(None)  # first: what goes on without its tables would have lost their rows
    _forget(made.flow, candidate, project.context)
    state.generations(flow).remove(candidate)


def drop(project: Project, state: StateDir, flow: str, generation: Generation) -> None:
    """Delete a generation that nothing needs, also one whose giving up was cut off."""
    if generation.definition.is_file() and generation.manifest.parent is not None:
        _forget(defined(project, state, flow, generation).flow, generation, project.context)
    state.generations(flow).remove(generation)


def _forget(flow: FlowPlan, generation: Generation, context: Context) -> None:
    for step in flow.sinks:
        step.sink.forget_beside(side_of(flow, step, generation.id, context))
