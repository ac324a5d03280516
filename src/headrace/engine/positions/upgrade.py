"""Whether flows may go on from their checkpoints: asked before anything starts, settled when a flow does."""

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
from headrace.plan.compare import ChangeVerdict, compare
from headrace.plan.model import FlowPlan
from headrace.plan.settings import PARTITIONS, pins
from headrace.plan.shape import shape_of
from headrace.project.loader import Project

From = Literal["start", "current"]
# how the reason of a generation begins that was made for a change
_CHANGED = "changed: "


@dataclass(frozen=True)
class FlowChange:
    """What a flow is now, against what its generation was begun with."""

    flow: FlowPlan
    verdict: ChangeVerdict
    generation: Generation | None
    shape: Mapping[str, Any]
    pins: Mapping[str, str]
    beside: str | None = None
    """The generation that runs, where this is about one that is built beside it."""

    def to_json(self) -> dict[str, Any]:
        """What `plan --json` says about it."""
        return {
            "verdict": self.verdict.kind,
            "reasons": list(self.verdict.reasons),
            "generation": None if self.generation is None else self.generation.id,
            "beside": self.beside,
        }


def change_of(project: Project, state: StateDir, flow: FlowPlan) -> FlowChange:
    """What has changed since the flow's generation began. Nothing is written, Spark and services are not asked."""
    settings = {**project.spec.spark.conf, **flow.spec.spark}
    shape = shape_of(flow, settings)
    # the number of partitions is the flow's own, whatever the project says to Spark
    given = {**DEFAULTS, **settings, PARTITIONS: flow.spec.spark.get(PARTITIONS, str(flow.partitions))}
    pinned = pins(given) if flow.state else {}
    generations = state.generations(flow.name)
    current = generations.current()
    if current is None:
        return FlowChange(flow, ChangeVerdict("first"), None, shape, pinned)
    if current.checkpoint.begun():
        return FlowChange(flow, _verdict(current, shape, pinned), current, shape, pinned)
    manifest = current.manifest
    before = generations.find(manifest.parent) if manifest.parent and manifest.reason.startswith(_CHANGED) else None
    if before is not None and _verdict(before, shape, pinned).kind == "safe":
        reason = f"{current.id} was made for a change that was taken back before it began"
        return FlowChange(flow, ChangeVerdict("safe", (reason,)), before, shape, pinned)
    return FlowChange(flow, ChangeVerdict("first"), current, shape, pinned)


def _verdict(generation: Generation, shape: Mapping[str, Any], pinned: Mapping[str, str]) -> ChangeVerdict:
    manifest, checkpoint = generation.manifest, generation.checkpoint
    verdict = compare(manifest.shape, shape, manifest.pins, pinned)
    planned = checkpoint.planned()
    if verdict.kind == "safe" and verdict.reasons and planned is not None and checkpoint.in_flight():
        note = f"batch {planned.batch_id} was begun before the change and is finished after it"
        verdict = replace(verdict, reasons=(*verdict.reasons, note))
    return verdict


def refusal(project: Project, change: FlowChange) -> ProjectError | None:
    """The error of a flow that may not go on as it is, None when it may."""
    flow, generation = change.flow.name, change.generation
    if generation is None or change.verdict.kind in ("first", "safe"):
        return None
    message = f"flow '{flow}' cannot go on from its generation {generation.id}: {'; '.join(change.verdict.reasons)}"
    hint = (
        f"take the change back, or begin anew: headrace run --new-generation {flow} (the sources are read from their "
        "start again; with --from current only what comes from now on)"
    )
    where = project.origin("flows", flow)
    if change.verdict.kind == "refused":
        return ProjectError("pinned-setting", message, where=where, hint=hint, exit_code=Exit.CONFLICT)
    return ProjectError("needs-new-generation", message, where=where, hint=hint, exit_code=Exit.CONFLICT)


def settle(project: Project, state: StateDir, flow: FlowPlan) -> Generation:
    """The generation a flow goes on with, which then says what the flow is now; refused when it cannot go on."""
    change = change_of(project, state, flow)
    error = refusal(project, change)
    if error is not None:
        raise error
    if change.generation is None:
        generations = state.generations(flow.name)
        made = generations.make(shape=change.shape, pins=change.pins)
        define(made, project)
        generations.switch(made)
        return made
    check_checkpoint(project, flow, change.generation)
    generations = state.generations(flow.name)
    if generations.current() != change.generation:
        generations.switch(change.generation)
    manifest = change.generation.manifest
    now = replace(manifest, shape=change.shape)
    if change.verdict.kind == "first":
        # Spark may have written down where to begin, and with what; no batch has made use of it
        remove_tree(change.generation.checkpoint_folder)
        now = replace(now, pins=change.pins, query=None)
    if now != manifest:
        change.generation.describe(now)
    define(change.generation, project)
    return change.generation


def define(generation: Generation, project: Project) -> None:
    """Keep what a generation is run as."""
    definition = project.definition()
    if definition is not None:
        generation.define(definition)


def effects(project: Project, change: FlowChange, begin: From) -> list[tuple[str, str]]:
    """What a new generation does to what each sink holds."""
    kept = _last_batch(change.generation) if begin == "current" and change.generation is not None else None
    again = 0 if begin == "current" else None
    found = []
    for step in change.flow.sinks:
        seen = Rewind(change.flow.name, step.id, project.context, kept, again)
        found.append((step.sink.label, rewind_effect(step.sink, seen, replace=False)))
    return found


def _last_batch(generation: Generation) -> tuple[str, int] | None:
    done = generation.checkpoint.committed()
    return None if done is None else (generation.id, done.batch_id)


def begin_anew(project: Project, state: StateDir, change: FlowChange, begin: From = "start") -> Generation:
    """A new generation of a flow, from the start of its sources or where the old one is. The old one is kept."""
    flow = change.flow
    old = change.generation
    start: dict[str, Any] = {}
    base: dict[str, Any] = {}
    if begin == "current" and old is not None:
        if is_pending(old):
            raise ProjectError(
                "history-unfinished",
                f"flow '{flow.name}' {progress(old)}: to begin at Kafka's position would leave the rest out",
                where=project.origin("flows", flow.name),
                hint="let it finish first, or begin anew with the whole history: --from start",
                exit_code=Exit.CONFLICT,
            )
        start = _reached(project, flow, old)
        last = _last_batch(old)
        base = {} if last is None else {"generation": last[0], "batch": last[1]}
    generations = state.generations(flow.name)
    made = generations.make(reason_of(change), shape=change.shape, pins=change.pins, start=start, base=base)
    generations.switch(made)
    return made


def reason_of(change: FlowChange) -> str:
    """Why a new generation is made."""
    reasons = "; ".join(change.verdict.reasons) if change.verdict.kind != "safe" else ""
    return f"{_CHANGED}{reasons}" if reasons else "asked for"


def _reached(project: Project, flow: FlowPlan, old: Generation) -> dict[str, Any]:
    """Where the old generation is, in every input."""
    planned = old.checkpoint.planned()
    if planned is not None and old.checkpoint.in_flight():
        raise ProjectError(
            "batch-in-flight",
            f"batch {planned.batch_id} of flow '{flow.name}' was begun and not finished: some sinks may have it",
            hint="let the flow finish it as it was (take the change back, headrace run --until-caught-up), or begin at "
            "the sources' start",
            exit_code=Exit.CONFLICT,
        )
    inputs = input_positions(flow, project.context)
    try:
        reached = committed_positions(inputs, old)
        # an input that the old generation did not have begins where its source says
        return {
            name: inputs[name].resolve(Current(), position, SplitScope())
            for name, position in reached.items()
            if position is not None or _was_read(old, name)
        }
    finally:
        for known in inputs.values():
            known.close()


def _was_read(old: Generation, name: str) -> bool:
    return any(one["name"] == name for one in old.manifest.shape.get("inputs", []))


def check_checkpoint(project: Project, flow: FlowPlan, generation: Generation) -> None:
    """Refuse a checkpoint that lost its identity: Spark would take it for a new one, and sinks for other batches."""
    known = generation.manifest.query
    try:
        found = json.loads((generation.checkpoint_folder / "metadata").read_text(encoding="utf-8"))["id"]
    except FileNotFoundError:
        found = None
    except (ValueError, KeyError, TypeError):
        found = "unreadable"
    if found == known or (known is None and not (found is None and generation.checkpoint.begun())):
        return
    what = "is not there any more" if found is None else "is that of another query"
    raise ProjectError(
        "checkpoint-damaged",
        f"the checkpoint of flow '{flow.name}' is damaged: {generation.checkpoint_folder / 'metadata'} {what}",
        where=project.origin("flows", flow.name),
        hint=f"put the file back, or begin anew: headrace run --new-generation {flow.name}",
        exit_code=Exit.CONFLICT,
    )


def began(generation: Generation, query: str) -> None:
    """Remember which query the generation belongs to."""
    manifest = generation.manifest
    if manifest.query != query:
        generation.describe(replace(manifest, query=query))
