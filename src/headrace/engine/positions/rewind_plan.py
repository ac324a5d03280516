"""The plan of a rewind: which positions change, what happens to each sink, and warnings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.core.positions import Position, Split
from headrace.engine.positions.positions import PositionsByInput
from headrace.engine.state.generations import Generation
from headrace.plan.model import FlowPlan


@dataclass(frozen=True)
class PositionChange:
    """The old and the new position in one split (partition) of an input."""

    stream: str
    topic: str
    partition: int
    before: int | None
    after: int | None
    counts_records: bool = True

    @property
    def again(self) -> int | None:
        """Records that are read again, negative for records that are skipped; None if unknown."""
        if self.before is None or self.after is None or not self.counts_records:
            return None
        return self.before - self.after

    def to_json(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "topic": self.topic,
            "partition": self.partition,
            "from": self.before,
            "to": self.after,
            "records": self.again,
        }


@dataclass(frozen=True)
class CheckpointCopy:
    """A checkpoint to return to: that of a savepoint or of an earlier generation."""

    name: str
    source: Generation

    @property
    def batch(self) -> tuple[str, int] | None:
        """The last batch whose rows are in the sinks, by generation and number."""
        record = self.source.checkpoint.committed()
        return None if record is None else (self.source.manifest.generation, record.batch_id)


@dataclass(frozen=True)
class RewindPlan:
    """What a rewind will do."""

    flow: FlowPlan
    to: str
    current: Generation | None
    moves: tuple[PositionChange, ...]
    effects: tuple[tuple[str, str], ...]
    """What happens to each sink, by its label."""
    warnings: tuple[str, ...]
    start: Mapping[str, Position]
    last_kept: tuple[str, int] | None
    """The last batch whose rows stay in the sinks, by generation and number."""
    replace: bool
    """Whether the rows after `last_kept` are removed from the sinks."""
    copy: CheckpointCopy | None = None

    @property
    def again(self) -> int | None:
        """Records that are read again; None if an input does not report them."""
        counts = [move.again for move in self.moves]
        known = [max(0, count) for count in counts if count is not None]
        return sum(known) if counts and len(known) == len(counts) else None

    @property
    def skipped(self) -> int:
        """Records that are never read."""
        return sum(max(0, -(move.again or 0)) for move in self.moves)

    def to_json(self) -> dict[str, Any]:
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


def position_changes(
    at: PositionsByInput, start: PositionsByInput, splits: Mapping[str, Sequence[Split]]
) -> Iterator[PositionChange]:
    """The change of every split from `at` to `start`."""
    for name, position in start.items():
        before, after = _offsets(at[name]), _offsets(position)
        for split in splits[name]:
            key = (split.topic, split.partition) if split.counts_records else ("version", 0)
            offsets = before.get(key), after.get(key)
            yield PositionChange(name, split.topic, split.partition, *offsets, split.counts_records)
        if not splits[name]:
            yield PositionChange(name, "", 0, None, None, counts_records=False)


def is_before(ends: PositionsByInput, start: PositionsByInput) -> bool:
    """Whether a batch with these end positions has read nothing from `start` on."""
    for name, position in start.items():
        batch_end, first = _offsets(ends.get(name)), _offsets(position)
        if not batch_end:
            return False
        if any((offset or 0) > (first.get(key) or 0) for key, offset in batch_end.items()):
            return False
    return True


def _offsets(position: Position | None) -> dict[tuple[str, int], int | None]:
    """The numbers of a position by topic and partition."""
    offsets: dict[tuple[str, int], int | None] = {}
    for topic, part in (position or {}).items():
        if isinstance(part, Mapping):
            offsets |= {(topic, int(p)): offset for p, offset in part.items()}
        else:
            offsets[(topic, 0)] = part
    return offsets


def plan_warnings(plan: RewindPlan, splits: Mapping[str, Sequence[Split]]) -> Iterator[str]:
    """Consequences that an operator should know before the rewind."""
    current, copy, state = plan.current, plan.copy, plan.flow.state
    if current is not None and current.checkpoint.in_flight():
        yield "a batch is unfinished: sinks that already have its rows will get them again"
    if copy is None and state and any(move.after for move in plan.moves):
        yield (
            f"state ({', '.join(state)}) starts empty: results that need records from before the new position will be "
            "incomplete; only a savepoint restores the state"
        )
    if copy is not None and copy.source.checkpoint.in_flight():
        yield f"a batch of {copy.name} is unfinished and will be run again"
    after = {(move.topic, move.partition): move.after for move in plan.moves}
    for split in (split for parts in splits.values() for split in parts if split.counts_records):
        position = after.get((split.topic, split.partition))
        if position is not None and position < split.start:
            yield f"{split.topic}:{split.partition}: records {position} to {split.start - 1} have expired"
        elif plan.replace and plan.last_kept is None and split.start > 0:
            yield (
                f"{split.topic}:{split.partition}: records before {split.start} have expired, so their rows cannot be "
                "written again"
            )
    if plan.skipped:
        yield f"{plan.skipped:,} records will never be read"
