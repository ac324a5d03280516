"""Going back to an earlier position: first a plan that says what it means, then a new generation.

The old generation stays as it is, so that every rewind can be undone by a rewind to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headrace.core.capabilities import Rewind, Rewindable, lake_paths, rewind_effect
from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError
from headrace.core.files.state_files import copy_tree, write_atomically
from headrace.core.positions import Earliest, Explicit, Position, Positions, Split, SplitScope, Target
from headrace.engine.positions.consumer_groups import publish
from headrace.engine.positions.positions import (
    ByInput,
    committed_positions,
    input_positions,
    known_batches,
    positions_at,
)
from headrace.engine.state.generations import Generation, Generations
from headrace.engine.state.state import StateDir
from headrace.plan.model import FlowPlan, LakeInput, Plan

_PENDING = "take_back.json"


@dataclass(frozen=True)
class Move:
    """One split of an input and where it is moved."""

    stream: str
    topic: str
    partition: int
    before: int | None
    after: int | None
    counts_records: bool = True

    @property
    def again(self) -> int | None:
        """Records read again, negative when some are left out; None when it cannot be told."""
        if self.before is None or self.after is None or not self.counts_records:
            return None
        return self.before - self.after

    def to_json(self) -> dict[str, Any]:
        """As printed."""
        return {
            "stream": self.stream,
            "topic": self.topic,
            "partition": self.partition,
            "from": self.before,
            "to": self.after,
            "records": self.again,
        }


@dataclass(frozen=True)
class Copy:
    """A checkpoint to go back to: that of a savepoint or of an earlier generation."""

    name: str
    source: Generation

    @property
    def batch(self) -> tuple[str, int] | None:
        """The last batch whose rows are in the sinks, by generation and number."""
        record = self.source.checkpoint.committed()
        return None if record is None else (self.source.manifest.generation, record.batch_id)


@dataclass(frozen=True)
class RewindPlan:
    """What a rewind will do, before it does it."""

    flow: FlowPlan
    to: str
    current: Generation | None
    moves: tuple[Move, ...]
    effects: tuple[tuple[str, str], ...]
    """What happens to each sink, by its label."""
    warnings: tuple[str, ...]
    start: Mapping[str, Position]
    kept: tuple[str, int] | None
    replace: bool
    copy: Copy | None = None

    @property
    def again(self) -> int | None:
        """How many records will be read again; None when some input cannot tell."""
        counts = [move.again for move in self.moves]
        known = [max(0, count) for count in counts if count is not None]
        return sum(known) if counts and len(known) == len(counts) else None

    @property
    def skipped(self) -> int:
        """How many records will never be read."""
        return sum(max(0, -(move.again or 0)) for move in self.moves)

    def to_json(self) -> dict[str, Any]:
        """As printed."""
        return {
            "flow": self.flow.name,
            "to": self.to,
            "generation": self.current.id if self.current else None,
            "replace": self.replace,
            "moves": [move.to_json() for move in self.moves],
            "records_again": self.again,
            "records_skipped": self.skipped,
            "effects": [{"sink": sink, "effect": effect} for sink, effect in self.effects],
            "warnings": list(self.warnings),
        }


@contextmanager
def stopped(state: StateDir, flow: str, *, building: bool = False) -> Iterator[None]:
    """Hold the state folder while a flow is changed; refused while an engine has it, and while a candidate is built
    unless that is what it is about."""
    lock = state.lock()
    try:
        lock.__enter__()
    except ProjectError as error:
        if error.code != "state-in-use":
            raise
        raise ProjectError(
            "flow-running",
            f"flow '{flow}' cannot be changed while the project runs: {error.message}",
            hint="stop it first: headrace stop",
            exit_code=Exit.CONFLICT,
        ) from error
    try:
        if not building:
            state.require_no_candidate(flow)
        yield
    finally:
        lock.__exit__(None, None, None)


@dataclass(frozen=True)
class Rewinder:
    """Plans and does the rewinds of one flow. `plan` holds all flows of the project: others may read its tables."""

    flow: FlowPlan
    project: Plan
    state: StateDir
    context: Context

    @property
    def generations(self) -> Generations:
        """Those of the flow."""
        return self.state.generations(self.flow.name)

    def to_position(self, target: Target, scope: SplitScope, replace: bool = False) -> RewindPlan:
        """A plan to begin at a target, without any state."""
        current = self.generations.current()
        inputs = input_positions(self.flow, self.context)
        try:
            at: ByInput = committed_positions(inputs, current) if current else dict.fromkeys(inputs)
            splits = {name: known.measure(at[name]) for name, known in inputs.items()}
            _require_known(target, scope, [split for parts in splits.values() for split in parts])
            start = {name: known.resolve(target, at[name], scope) for name, known in inputs.items()}
            kept = None if isinstance(target, Earliest) else self._boundary(inputs, start)
            going_back = any((move.again or 0) > 0 or move.after is None for move in _moves(at, start, splits))
            if replace and going_back and not isinstance(target, Earliest):
                kept, start = self._aligned(inputs, kept)
        finally:
            _close(inputs)
        return self._plan(str(target), at, start, splits, kept, replace, None)

    def to_copy(self, copy: Copy, replace: bool = False) -> RewindPlan:
        """A plan to go on from a savepoint or an earlier generation, with its state."""
        current = self.generations.current()
        inputs = input_positions(self.flow, self.context)
        try:
            at: ByInput = committed_positions(inputs, current) if current else dict.fromkeys(inputs)
            to = committed_positions(inputs, copy.source)
            splits = {name: known.measure(to[name]) for name, known in inputs.items()}
        finally:
            _close(inputs)
        return self._plan(copy.name, at, to, splits, copy.batch, replace, copy)

    def execute(self, plan: RewindPlan) -> Generation:
        """Make the new generation and let the flow go on with it; one write decides."""
        base = {} if plan.kept is None else {"generation": plan.kept[0], "batch": plan.kept[1]}
        known: dict[str, Any] = {"base": base}
        if plan.copy is None:
            known["start"] = plan.start
        else:
            before = plan.copy.source.manifest
            known |= {"start": before.start, "pins": before.pins, "shape": before.shape, "topics": before.topics}
            known["history"] = before.history
        made = self.generations.make(f"rewind to {plan.to}", **known)
        if plan.copy is not None:
            copy_tree(plan.copy.source.checkpoint_folder, made.checkpoint_folder)
        if plan.replace:
            write_atomically(made.folder / _PENDING, json.dumps({"kept": plan.kept}).encode())
        self.generations.switch(made)
        finish_take_back(self.flow, made, self.context)
        return made

    def announce(self) -> list[str]:
        """Tell the consumer groups where the flow is now; their names. The flow itself does not look at them."""
        inputs = input_positions(self.flow, self.context)
        try:
            current = self.generations.current()
            at = committed_positions(inputs, current) if current else {}
            return publish(self.project.project, self.flow.name, inputs, at)
        finally:
            _close(inputs)

    def _plan(
        self,
        to: str,
        at: ByInput,
        start: ByInput,
        splits: Mapping[str, Sequence[Split]],
        kept: tuple[str, int] | None,
        replace: bool,
        copy: Copy | None,
    ) -> RewindPlan:
        draft = RewindPlan(
            flow=self.flow,
            to=to,
            current=self.generations.current(),
            moves=tuple(_moves(at, start, splits)),
            effects=(),
            warnings=(),
            start={name: position for name, position in start.items() if position is not None},
            kept=kept,
            replace=replace,
            copy=copy,
        )
        effects = []
        for step in self.flow.sinks:
            seen = Rewind(self.flow.name, step.id, self.context, kept, draft.again)
            effects.append((step.sink.label, rewind_effect(step.sink, seen, replace)))
        warnings = (*self._warnings(draft, splits), *self._readers(draft))
        return RewindPlan(**{**draft.__dict__, "effects": tuple(effects), "warnings": warnings})

    def _boundary(self, inputs: Mapping[str, Positions], start: ByInput) -> tuple[str, int] | None:
        """The last batch of the flow that ended at or before a position."""
        if any(position is None for position in start.values()):
            return None
        for generation, last in self.generations.lineage():
            for number, ends in sorted(known_batches(generation).items(), reverse=True):
                if (last is None or number <= last) and _is_before(positions_at(inputs, ends), start):
                    return generation.id, number
        return None

    def _aligned(
        self, inputs: Mapping[str, Positions], kept: tuple[str, int] | None
    ) -> tuple[tuple[str, int], ByInput]:
        """The last batch that stays, and where it ended: its rows can only be kept or taken back together."""
        generation = None if kept is None else self.generations.find(kept[0])
        if kept is None or generation is None:
            raise ProjectError(
                "rewind-no-boundary",
                f"no batch of flow '{self.flow.name}' is known to have ended by then, so its rows cannot be told apart",
                hint="--to earliest --replace takes all rows back; without --replace any position will do",
                exit_code=Exit.CONFLICT,
            )
        return kept, positions_at(inputs, known_batches(generation)[kept[1]])

    def _warnings(self, plan: RewindPlan, splits: Mapping[str, Sequence[Split]]) -> Iterator[str]:
        current = plan.current
        if current is not None and current.checkpoint.in_flight():
            yield "a batch was begun and not finished: sinks that have it already will get its rows again"
        if plan.copy is None and self.flow.state and any(move.after for move in plan.moves):
            yield (
                f"state ({', '.join(self.flow.state)}) begins empty: results that need records from before the new "
                "position will be incomplete; only a savepoint brings the state back"
            )
        if plan.copy is not None and plan.copy.source.checkpoint.in_flight():
            yield f"a batch of {plan.copy.name} was never finished and will be run again"
        to = {(move.topic, move.partition): move.after for move in plan.moves}
        for split in (one for parts in splits.values() for one in parts):
            after = to.get((split.topic, split.partition))
            if split.counts_records and after is not None and after < split.start:
                yield f"{split.topic}:{split.partition}: records {after} to {split.start - 1} are no longer there"
            elif plan.replace and plan.kept is None and split.counts_records and split.start > 0:
                yield (
                    f"{split.topic}:{split.partition}: records before {split.start} are no longer there, so their rows "
                    "cannot come again"
                )
        if plan.skipped:
            yield f"{plan.skipped:,} records will never be read"

    def _readers(self, plan: RewindPlan) -> Iterator[str]:
        """Other flows that read a table of this one: they stop at rows that were taken back."""
        paths = {self.context.path(path) for path in lake_paths(step.sink for step in self.flow.sinks)}
        for flow in self.project.flows if plan.replace else ():
            if any(isinstance(one, LakeInput) and one.path in paths for one in flow.all_inputs()):
                yield f"flow '{flow.name}' reads the table of this one: rewind it to earliest too"


def finish_take_back(flow: FlowPlan, generation: Generation, context: Context) -> None:
    """Take back what a rewind promised to, also when it was interrupted: called again before the flow starts."""
    pending = generation.folder / _PENDING
    if not pending.exists():
        return
    kept = json.loads(pending.read_text(encoding="utf-8"))["kept"]
    for step in flow.sinks:
        if isinstance(step.sink, Rewindable):
            step.sink.take_back(
                Rewind(flow.name, step.id, context, tuple(kept) if kept else None, generation=generation.id)
            )
    pending.unlink()


def _require_known(target: Target, scope: SplitScope, splits: Sequence[Split]) -> None:
    scope.require(splits)
    if isinstance(target, Explicit):
        SplitScope({topic: frozenset(parts) for topic, parts in target.offsets.items()}).require(splits)


def _moves(at: ByInput, start: ByInput, splits: Mapping[str, Sequence[Split]]) -> Iterator[Move]:
    for name, position in start.items():
        before, after = _flat(at[name]), _flat(position)
        for split in splits[name]:
            key = (split.topic, split.partition) if split.counts_records else ("version", 0)
            yield Move(name, split.topic, split.partition, before.get(key), after.get(key), split.counts_records)
        if not splits[name]:
            yield Move(name, "", 0, None, None, counts_records=False)


def _flat(position: Position | None) -> dict[tuple[str, int], int | None]:
    """The numbers of a position by topic and partition."""
    found: dict[tuple[str, int], int | None] = {}
    for topic, part in (position or {}).items():
        if isinstance(part, Mapping):
            found |= {(topic, int(p)): offset for p, offset in part.items()}
        else:
            found[(topic, 0)] = part
    return found


def _is_before(ends: ByInput, start: ByInput) -> bool:
    """Whether a batch that ended there has read nothing from the new position on."""
    for name, position in start.items():
        ended, begins = _flat(ends.get(name)), _flat(position)
        if not ended:
            return False
        if any((offset or 0) > (begins.get(key) or 0) for key, offset in ended.items()):
            return False
    return True


def _close(inputs: Mapping[str, Positions]) -> None:
    for known in inputs.values():
        known.close()
