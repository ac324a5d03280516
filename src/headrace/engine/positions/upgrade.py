"""Decides whether a changed flow can continue from its checkpoint or needs a new generation.

`detect_change` compares a flow with its current generation; it only reads. `resolve_generation` acts on the result when
the flow starts. `start_new_generation` starts over, for a change that Spark cannot carry over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from headrace.core.capabilities import Rewind, rewind_effect
from headrace.core.errors import Exit, ProjectError
from headrace.core.files.state_files import remove_tree
from headrace.core.positions import Current, SplitScope
from headrace.engine.inputs.backfill import is_pending, progress
from headrace.engine.positions.positions import committed_positions, input_positions
from headrace.engine.spark.session import DEFAULTS
from headrace.engine.state.generations import Generation
from headrace.engine.state.state import StateDir
from headrace.plan.checkpoint_shape import shape_of
from headrace.plan.compare import ChangeVerdict, compare
from headrace.plan.model import FlowPlan
from headrace.plan.settings import PARTITIONS, pins
from headrace.project.loader import Project

StartFrom = Literal["start", "current"]
# prefix of the reason of a generation that was created for a change
_CHANGED = "changed: "


@dataclass(frozen=True)
class FlowChange:
    """A flow compared with the definition of its generation."""

    flow: FlowPlan
    verdict: ChangeVerdict
    generation: Generation | None
    shape: Mapping[str, Any]
    pins: Mapping[str, str]
    running: str | None = None
    """The id of the running generation, if this is a comparison with its candidate."""

    def to_json(self) -> dict[str, Any]:
        """As in `plan --json`."""
        return {
            "verdict": self.verdict.kind,
            "reasons": list(self.verdict.reasons),
            "generation": None if self.generation is None else self.generation.id,
            "beside": self.running,
        }


def detect_change(project: Project, state: StateDir, flow: FlowPlan) -> FlowChange:
    """Compare a flow with its current generation. Writes nothing, and contacts neither Spark nor services."""
    settings = {**project.spec.spark.conf, **flow.spec.spark}
    shape = shape_of(flow, settings)
    # the flow's number of partitions takes precedence over the project's Spark settings
    effective = {**DEFAULTS, **settings, PARTITIONS: flow.spec.spark.get(PARTITIONS, str(flow.partitions))}
    pinned = pins(effective) if flow.state else {}
    generations = state.generations(flow.name)
    current = generations.current()
    if current is None:
        return FlowChange(flow, ChangeVerdict("first"), None, shape, pinned)
    if current.checkpoint.begun():
        return FlowChange(flow, _verdict(current, shape, pinned), current, shape, pinned)
    manifest = current.manifest
    parent = generations.find(manifest.parent) if manifest.parent and manifest.reason.startswith(_CHANGED) else None
    if parent is not None and _verdict(parent, shape, pinned).kind == "safe":
        reason = f"{current.id} was created for a change that was reverted before its first batch"
        return FlowChange(flow, ChangeVerdict("safe", (reason,)), parent, shape, pinned)
    return FlowChange(flow, ChangeVerdict("first"), current, shape, pinned)


def _verdict(generation: Generation, shape: Mapping[str, Any], pinned: Mapping[str, str]) -> ChangeVerdict:
    manifest, checkpoint = generation.manifest, generation.checkpoint
    verdict = compare(manifest.shape, shape, manifest.pins, pinned)
    planned = checkpoint.planned()
    if verdict.kind == "safe" and verdict.reasons and planned is not None and checkpoint.in_flight():
        note = f"batch {planned.batch_id} was started before the change and is finished after it"
        verdict = replace(verdict, reasons=(*verdict.reasons, note))
    return verdict


def change_error(project: Project, change: FlowChange) -> ProjectError | None:
    """The error of a flow that cannot continue from its generation; None if it can."""
    flow, generation = change.flow.name, change.generation
    if generation is None or change.verdict.kind in ("first", "safe"):
        return None
    message = f"flow '{flow}' cannot continue from its generation {generation.id}: {'; '.join(change.verdict.reasons)}"
    hint = (
        f"revert the change, or start over: headrace run --new-generation {flow} (reads the sources from their start; "
        "with --from current only new records)"
    )
    where = project.origin("flows", flow)
    if change.verdict.kind == "refused":
        return ProjectError("pinned-setting", message, where=where, hint=hint, exit_code=Exit.CONFLICT)
    return ProjectError("needs-new-generation", message, where=where, hint=hint, exit_code=Exit.CONFLICT)


def resolve_generation(project: Project, state: StateDir, flow: FlowPlan) -> Generation:
    """The generation to start a flow with, updated to the flow's definition; an error if the flow cannot continue."""
    change = detect_change(project, state, flow)
    error = change_error(project, change)
    if error is not None:
        raise error
    if change.generation is None:
        generations = state.generations(flow.name)
        generation = generations.make(shape=change.shape, pins=change.pins)
        save_definition(generation, project)
        generations.switch(generation)
        return generation
    check_checkpoint(project, flow, change.generation)
    generations = state.generations(flow.name)
    if generations.current() != change.generation:
        generations.switch(change.generation)
    manifest = change.generation.manifest
    updated = replace(manifest, shape=change.shape)
    if change.verdict.kind == "first":
        # Spark may have written start offsets and settings, but no batch has used them
        remove_tree(change.generation.checkpoint_folder)
        updated = replace(updated, pins=change.pins, query=None)
    if updated != manifest:
        change.generation.describe(updated)
    save_definition(change.generation, project)
    return change.generation


def save_definition(generation: Generation, project: Project) -> None:
    """Store the project definition with which a generation runs."""
    definition = project.definition()
    if definition is not None:
        generation.define(definition)


def new_generation_effects(project: Project, change: FlowChange, start_from: StartFrom) -> list[tuple[str, str]]:
    """What a new generation does to the rows in each sink."""
    last_kept = _last_batch(change.generation) if start_from == "current" and change.generation is not None else None
    again = 0 if start_from == "current" else None
    effects = []
    for step in change.flow.sinks:
        seen = Rewind(change.flow.name, step.id, project.context, last_kept, again)
        effects.append((step.sink.label, rewind_effect(step.sink, seen, replace=False)))
    return effects


def _last_batch(generation: Generation) -> tuple[str, int] | None:
    done = generation.checkpoint.committed()
    return None if done is None else (generation.id, done.batch_id)


def start_new_generation(
    project: Project, state: StateDir, change: FlowChange, start_from: StartFrom = "start"
) -> Generation:
    """Create a new generation at the start of the sources or at the current position. The old one is kept."""
    flow = change.flow
    old = change.generation
    start: dict[str, Any] = {}
    base: dict[str, Any] = {}
    if start_from == "current" and old is not None:
        if is_pending(old):
            raise ProjectError(
                "history-unfinished",
                f"flow '{flow.name}' {progress(old)}: starting at Kafka's position would skip the rest",
                where=project.origin("flows", flow.name),
                hint="let it finish first, or start over with the whole history: --from start",
                exit_code=Exit.CONFLICT,
            )
        start = _current_positions(project, flow, old)
        last = _last_batch(old)
        base = {} if last is None else {"generation": last[0], "batch": last[1]}
    generations = state.generations(flow.name)
    reason = generation_reason(change)
    generation = generations.make(reason, shape=change.shape, pins=change.pins, start=start, base=base)
    generations.switch(generation)
    return generation


def generation_reason(change: FlowChange) -> str:
    """Why a new generation is created."""
    reasons = "; ".join(change.verdict.reasons) if change.verdict.kind != "safe" else ""
    return f"{_CHANGED}{reasons}" if reasons else "asked for"


def _current_positions(project: Project, flow: FlowPlan, old: Generation) -> dict[str, Any]:
    """The positions of the old generation in every input."""
    planned = old.checkpoint.planned()
    if planned is not None and old.checkpoint.in_flight():
        raise ProjectError(
            "batch-in-flight",
            f"batch {planned.batch_id} of flow '{flow.name}' is unfinished: some sinks may have its rows",
            hint="revert the change and finish the batch (headrace run --until-caught-up), or start at the beginning "
            "of the sources",
            exit_code=Exit.CONFLICT,
        )
    inputs = input_positions(flow, project.context)
    try:
        reached = committed_positions(inputs, old)
        # an input that the old generation did not read starts where its source says
        return {
            name: inputs[name].resolve(Current(), position, SplitScope())
            for name, position in reached.items()
            if position is not None or _was_read(old, name)
        }
    finally:
        for known in inputs.values():
            known.close()


def _was_read(old: Generation, name: str) -> bool:
    return any(item["name"] == name for item in old.manifest.shape.get("inputs", []))


def check_checkpoint(project: Project, flow: FlowPlan, generation: Generation) -> None:
    """Refuse a checkpoint without its query id: Spark would treat it as new, and sinks would write batches twice."""
    expected = generation.manifest.query
    try:
        query = json.loads((generation.checkpoint_folder / "metadata").read_text(encoding="utf-8"))["id"]
    except FileNotFoundError:
        query = None
    except (ValueError, KeyError, TypeError):
        query = "unreadable"
    if query == expected or (expected is None and not (query is None and generation.checkpoint.begun())):
        return
    what = "is missing" if query is None else "belongs to another query"
    raise ProjectError(
        "checkpoint-damaged",
        f"the checkpoint of flow '{flow.name}' is damaged: {generation.checkpoint_folder / 'metadata'} {what}",
        where=project.origin("flows", flow.name),
        hint=f"restore the file, or start over: headrace run --new-generation {flow.name}",
        exit_code=Exit.CONFLICT,
    )


def record_query_id(generation: Generation, query: str) -> None:
    """Store the id of the generation's query, so that a damaged checkpoint is recognised."""
    manifest = generation.manifest
    if manifest.query != query:
        generation.describe(replace(manifest, query=query))
