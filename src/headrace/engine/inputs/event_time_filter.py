"""The gate before Spark's watermark: late rows are kept aside, and no time of the far future passes.

Both are judged by what was written down before the batch ran, never by the clock: a batch that runs again has the same
rows on each side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.schema import TIMESTAMP
from headrace.engine.letters.dead_letters import DeadLetterWriter
from headrace.engine.letters.late_rows import LateRowWriter, json_texts
from headrace.engine.state.batch_clock import BatchClock, BatchTimes
from headrace.project.model import EventTime
from headrace.sql.lateness import LateRule

FUTURE = "future-event-time"
PositionOf = Callable[[int], dict[str, object] | None]


@dataclass(frozen=True)
class Ahead:
    """A row whose time is too far in the future."""

    index: int
    detail: str


@dataclass
class Gate:
    """Judges the rows of one task by their event time, which must not be null.

    Late rows (where the rule is known) go into their box, rows from the future are given back to become dead letters or
    get the time of the batch. Every row is in one of the three.
    """

    event_time: EventTime
    clock: BatchClock
    rule: LateRule | None = None
    late: LateRowWriter | None = None
    watch_future: bool = True

    def check(self, rows: pa.RecordBatch, position_of: PositionOf) -> tuple[pa.RecordBatch, list[Ahead]]:
        """The rows that may go on, and those from the future, which may not."""
        if rows.num_rows == 0:
            return rows, []
        at = self.clock.times()
        bound = None if self.rule is None else self.rule.bound(at.watermark)
        limit = self._limit(at)
        numbers = _numbers(rows, self.event_time.column)
        extremes = pc.min_max(numbers)
        oldest, newest = extremes["min"].as_py(), extremes["max"].as_py()
        ahead: list[Ahead] = []
        if limit is not None and newest > limit:
            rows, numbers, ahead, position_of = self._without_future(rows, numbers, limit, at, position_of)
        if bound is not None and oldest < bound:
            rows = self._without_late(rows, pc.less(numbers, bound), at, position_of)
        return rows, ahead

    def flush(self) -> None:
        """Make the late rows durable."""
        if self.late is not None:
            self.late.flush()

    def _limit(self, at: BatchTimes) -> int | None:
        if self.event_time.max_future is None or not self.watch_future:
            return None
        return at.timestamp + round(self.event_time.max_future.total_seconds() * 1_000_000)

    def _without_future(
        self, rows: pa.RecordBatch, numbers: pa.Array, limit: int, at: BatchTimes, position_of: PositionOf
    ) -> tuple[pa.RecordBatch, pa.Array, list[Ahead], PositionOf]:
        is_ahead = pc.greater(numbers, limit)
        if self.event_time.on_future == "clamp":
            clamped = pc.if_else(is_ahead, pa.scalar(at.timestamp, pa.int64()), numbers)
            index = rows.schema.get_field_index(self.event_time.column)
            return rows.set_column(index, rows.schema.field(index), clamped.cast(TIMESTAMP)), clamped, [], position_of
        said = f"{self.event_time.column} is {{}}, the batch is of {_written(at.timestamp)}"
        ahead = [
            Ahead(index, said.format(_written(numbers[index].as_py())))
            for index in pc.indices_nonzero(is_ahead).to_pylist()
        ]
        stay = pc.invert(is_ahead)
        places = pc.indices_nonzero(stay)
        return rows.filter(stay), numbers.filter(stay), ahead, lambda index: position_of(places[index].as_py())

    def _without_late(
        self, rows: pa.RecordBatch, is_late: pa.Array, at: BatchTimes, position_of: PositionOf
    ) -> pa.RecordBatch:
        assert self.late is not None, "a gate with a rule has a box"
        places = pc.indices_nonzero(is_late)
        positions = [position_of(index) for index in places.to_pylist()]
        self.late.add(rows.take(places), self.event_time.column, positions, at)
        return rows.filter(pc.invert(is_late))


def _written(microseconds: int) -> str:
    try:
        return datetime.fromtimestamp(microseconds / 1_000_000, UTC).isoformat()
    except (OverflowError, ValueError):
        return f"after year {MAXYEAR}"


def _numbers(rows: pa.RecordBatch, column: str) -> pa.Array:
    return rows.column(column).cast(TIMESTAMP).cast(pa.int64())


@dataclass
class GateStep:
    """The gate as a step of its own, for rows that need no decoding; the function given to `mapInArrow`.

    A row without an event time becomes a dead letter too: windows would drop it silently. `extra` names columns that
    are only there for the position and go no further.
    """

    gate: Gate
    letters: DeadLetterWriter
    position: Sequence[str] = ()
    extra: Sequence[str] = ()
    _seen: int = 0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Judge all batches of a task."""
        try:
            for batch in batches:
                yield self._one(batch)
                self._seen += batch.num_rows
        finally:
            self.letters.flush()
            self.gate.flush()

    def _one(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch.drop_columns(list(self.extra)) if self.extra else batch
        origin: pa.Array | None = None
        times = rows.column(self.gate.event_time.column)
        if times.null_count:
            for index in pc.indices_nonzero(pc.is_null(times)).to_pylist():
                self._keep("no-event-time", f"{self.gate.event_time.column} is null", batch, index)
            origin = pc.indices_nonzero(pc.is_valid(times))
            rows = rows.filter(pc.is_valid(times))

        def place(index: int) -> int:
            return index if origin is None else int(origin[index].as_py())

        passed, ahead = self.gate.check(rows, lambda index: self._position_of(batch, place(index)))
        for one in ahead:
            self._keep(FUTURE, one.detail, batch, place(one.index))
        return passed

    def _keep(self, reason: str, detail: str, batch: pa.RecordBatch, index: int) -> None:
        position = self._position_of(batch, index)
        if position is None:
            at = self.gate.clock.times()
            generation = self.letters.generation
            position = {"generation": generation, "batch": at.batch_id, "task": at.task, "row": self._seen + index}
        self.letters.add(reason, detail, position, json_texts(batch.slice(index, 1))[0].encode())

    def _position_of(self, batch: pa.RecordBatch, index: int) -> dict[str, object] | None:
        if not self.position:
            return None
        return {name.lstrip("_"): batch.column(name)[index].as_py() for name in self.position}
