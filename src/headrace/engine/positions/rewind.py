"""Rewind: moves a flow to an earlier (or later) position by starting a new generation there.

::

    target            position, time, savepoint or earlier generation
      |  to_position / to_checkpoint
    RewindPlan        new positions, effect on each sink, warnings; nothing is changed yet
      |  execute
    new generation    with the start positions, or with a copy of the checkpoint and its state
      |  switch       one write makes it the current generation
    sinks             with `replace`, each sink removes the rows after the last batch that is kept;
                      after a crash the next start of the flow finishes this

The old generation is kept, so a rewind to it undoes the rewind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as with_fields
from typing import Any

from headrace.core.capabilities import Rewind, Rewindable, lake_paths, rewind_effect
from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError
from headrace.core.files.state_files import copy_tree, write_atomically
from headrace.core.positions import Earliest, Explicit, Positions, Split, SplitScope, Target
from headrace.engine.positions.consumer_groups import publish_positions
from headrace.engine.positions.positions import (
    PositionsByInput,
    committed_positions,
    input_positions,
    known_batch_ends,
    positions_at,
)
from headrace.engine.positions.rewind_plan import (
    CheckpointCopy,
    RewindPlan,
    is_before,
    plan_warnings,
    position_changes,
)
from headrace.engine.state.generations import Generation, Generations
from headrace.engine.state.state import StateDir
from headrace.plan.model import FlowPlan, LakeInput, Plan

_ROW_REMOVAL = "take_back.json"


@contextmanager
def while_stopped(state: StateDir, flow: str, *, building: bool = False) -> Iterator[None]:
    """Hold the lock of the state folder while a flow is changed.

    An error if an engine holds it, or if the flow has a candidate (allowed with `building`).
    """
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
    """Plans and executes rewinds of one flow. `project` holds all flows of the project: others may read its tables."""

    flow: FlowPlan
    project: Plan
    state: StateDir
    context: Context

    @property
    def generations(self) -> Generations:
        return self.state.generations(self.flow.name)

    def to_position(self, target: Target, scope: SplitScope, replace: bool = False) -> RewindPlan:
        """A plan to start at a target, with empty state."""
        with self._open_inputs() as inputs:
            at = self._current_positions(inputs)
            splits = {name: known.measure(at[name]) for name, known in inputs.items()}
            _require_known(target, scope, [split for parts in splits.values() for split in parts])
            start = {name: known.resolve(target, at[name], scope) for name, known in inputs.items()}
            last_kept = None if isinstance(target, Earliest) else self._last_batch_before(inputs, start)
            changes = position_changes(at, start, splits)
            goes_back = any((change.again or 0) > 0 or change.after is None for change in changes)
            if replace and goes_back and not isinstance(target, Earliest):
                last_kept, start = self._batch_boundary(inputs, last_kept)
        return self._plan(str(target), at, start, splits, last_kept, replace, None)

    def to_checkpoint(self, copy: CheckpointCopy, replace: bool = False) -> RewindPlan:
        """A plan to continue from a savepoint or an earlier generation, with its state."""
        with self._open_inputs() as inputs:
            at, to = self._current_positions(inputs), committed_positions(inputs, copy.source)
            splits = {name: known.measure(to[name]) for name, known in inputs.items()}
        return self._plan(copy.name, at, to, splits, copy.batch, replace, copy)

    def execute(self, plan: RewindPlan) -> Generation:
        """Create the new generation and switch to it, with one write."""
        base = {} if plan.last_kept is None else {"generation": plan.last_kept[0], "batch": plan.last_kept[1]}
        fields: dict[str, Any] = {"base": base}
        if plan.copy is None:
            fields["start"] = plan.start
        else:
            source = plan.copy.source.manifest
            fields |= {"start": source.start, "pins": source.pins, "shape": source.shape, "topics": source.topics}
            fields["history"] = source.history
        generation = self.generations.make(f"rewind to {plan.to}", **fields)
        if plan.copy is not None:
            copy_tree(plan.copy.source.checkpoint_folder, generation.checkpoint_folder)
        if plan.replace:
            write_atomically(generation.folder / _ROW_REMOVAL, json.dumps({"kept": plan.last_kept}).encode())
        self.generations.switch(generation)
        finish_row_removal(self.flow, generation, self.context)
        return generation

    def announce(self) -> list[str]:
        """Commit the new positions to the consumer groups; returns their names. The flow does not read them."""
        with self._open_inputs() as inputs:
            current = self.generations.current()
            at = committed_positions(inputs, current) if current else {}
            return publish_positions(self.project.project, self.flow.name, inputs, at)

    @contextmanager
    def _open_inputs(self) -> Iterator[dict[str, Positions]]:
        inputs = input_positions(self.flow, self.context)
        try:
            yield inputs
        finally:
            for known in inputs.values():
                known.close()

    def _current_positions(self, inputs: Mapping[str, Positions]) -> PositionsByInput:
        current = self.generations.current()
        return committed_positions(inputs, current) if current else dict.fromkeys(inputs)

    def _plan(
        self,
        to: str,
        at: PositionsByInput,
        start: PositionsByInput,
        splits: Mapping[str, Sequence[Split]],
        last_kept: tuple[str, int] | None,
        replace: bool,
        copy: CheckpointCopy | None,
    ) -> RewindPlan:
        draft = RewindPlan(
            flow=self.flow,
            to=to,
            current=self.generations.current(),
            moves=tuple(position_changes(at, start, splits)),
            effects=(),
            warnings=(),
            start={name: position for name, position in start.items() if position is not None},
            last_kept=last_kept,
            replace=replace,
            copy=copy,
        )
        effects = []
        for step in self.flow.sinks:
            seen = Rewind(self.flow.name, step.id, self.context, last_kept, draft.again)
            effects.append((step.sink.label, rewind_effect(step.sink, seen, replace)))
        warnings = (*plan_warnings(draft, splits), *self._reader_warnings(draft))
        return with_fields(draft, effects=tuple(effects), warnings=warnings)

    def _last_batch_before(self, inputs: Mapping[str, Positions], start: PositionsByInput) -> tuple[str, int] | None:
        """The last batch of the flow that ended at or before a position."""
        if any(position is None for position in start.values()):
            return None
        for generation, last in self.generations.lineage():
            for number, ends in sorted(known_batch_ends(generation).items(), reverse=True):
                if (last is None or number <= last) and is_before(positions_at(inputs, ends), start):
                    return generation.id, number
        return None

    def _batch_boundary(
        self, inputs: Mapping[str, Positions], last_kept: tuple[str, int] | None
    ) -> tuple[tuple[str, int], PositionsByInput]:
        """The last batch that is kept, and its end positions: the rows of a batch can only be removed together."""
        generation = None if last_kept is None else self.generations.find(last_kept[0])
        if last_kept is None or generation is None:
            raise ProjectError(
                "rewind-no-boundary",
                f"no batch of flow '{self.flow.name}' is known to end there, so the rows to remove are unknown",
                hint="--to earliest --replace removes all rows; without --replace any position is possible",
                exit_code=Exit.CONFLICT,
            )
        return last_kept, positions_at(inputs, known_batch_ends(generation)[last_kept[1]])

    def _reader_warnings(self, plan: RewindPlan) -> Iterator[str]:
        """Other flows that read a lake table of this flow stop at the removed rows."""
        paths = {self.context.path(path) for path in lake_paths(step.sink for step in self.flow.sinks)}
        for flow in self.project.flows if plan.replace else ():
            if any(isinstance(item, LakeInput) and item.path in paths for item in flow.all_inputs()):
                yield f"flow '{flow.name}' reads the table of this flow: rewind it to earliest too"


def finish_row_removal(flow: FlowPlan, generation: Generation, context: Context) -> None:
    """Remove the rows that a rewind with `replace` discards. Called again before the flow starts, after a crash."""
    pending = generation.folder / _ROW_REMOVAL
    if not pending.exists():
        return
    last_kept = json.loads(pending.read_text(encoding="utf-8"))["kept"]
    for step in flow.sinks:
        if isinstance(step.sink, Rewindable):
            step.sink.take_back(
                Rewind(flow.name, step.id, context, tuple(last_kept) if last_kept else None, generation=generation.id)
            )
    pending.unlink()


def _require_known(target: Target, scope: SplitScope, splits: Sequence[Split]) -> None:
    scope.require(splits)
    if isinstance(target, Explicit):
        SplitScope({topic: frozenset(parts) for topic, parts in target.offsets.items()}).require(splits)
