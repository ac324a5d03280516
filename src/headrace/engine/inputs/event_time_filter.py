"""The filter before Spark's watermark: stores late rows, and rejects or clamps event times too far ahead.

It uses the times that Spark recorded before the batch ran, never the clock, so that a batch that runs again has the
same rows on each side.
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
class FutureRow:
    """A row whose time is too far in the future."""

    index: int
    detail: str


@dataclass
class EventTimeFilter:
    """Filters the rows of one task by their event time, which must not be null.

    Late rows (if the rule is known) are written to files. Rows from the future are returned to become dead letters, or
    get the time of the batch. Every row is in exactly one of the three.
    """

    event_time: EventTime
    clock: BatchClock
    rule: LateRule | None = None
    late: LateRowWriter | None = None
    watch_future: bool = True

    def check(self, rows: pa.RecordBatch, position_of: PositionOf) -> tuple[pa.RecordBatch, list[FutureRow]]:
        """The rows that pass, and the rows from the future, which do not."""
        if rows.num_rows == 0:
            return rows, []
        at = self.clock.times()
        bound = None if self.rule is None else self.rule.bound(at.watermark)
        limit = self._limit(at)
        numbers = _numbers(rows, self.event_time.column)
        extremes = pc.min_max(numbers)
        oldest, newest = extremes["min"].as_py(), extremes["max"].as_py()
        future: list[FutureRow] = []
        if limit is not None and newest > limit:
            rows, numbers, future, position_of = self._without_future(rows, numbers, limit, at, position_of)
        if bound is not None and oldest < bound:
            rows = self._without_late(rows, pc.less(numbers, bound), at, position_of)
        return rows, future

    def flush(self) -> None:
        if self.late is not None:
            self.late.flush()

    def _limit(self, at: BatchTimes) -> int | None:
        if self.event_time.max_future is None or not self.watch_future:
            return None
        return at.timestamp + round(self.event_time.max_future.total_seconds() * 1_000_000)

    def _without_future(
        self, rows: pa.RecordBatch, numbers: pa.Array, limit: int, at: BatchTimes, position_of: PositionOf
    ) -> tuple[pa.RecordBatch, pa.Array, list[FutureRow], PositionOf]:
        is_future = pc.greater(numbers, limit)
        if self.event_time.on_future == "clamp":
            clamped = pc.if_else(is_future, pa.scalar(at.timestamp, pa.int64()), numbers)
            index = rows.schema.get_field_index(self.event_time.column)
            return rows.set_column(index, rows.schema.field(index), clamped.cast(TIMESTAMP)), clamped, [], position_of
        detail = f"{self.event_time.column} is {{}}, the batch is of {_text(at.timestamp)}"
        future = [
            FutureRow(index, detail.format(_text(numbers[index].as_py())))
            for index in pc.indices_nonzero(is_future).to_pylist()
        ]
        passes = pc.invert(is_future)
        places = pc.indices_nonzero(passes)
        return rows.filter(passes), numbers.filter(passes), future, lambda index: position_of(places[index].as_py())

    def _without_late(
        self, rows: pa.RecordBatch, is_late: pa.Array, at: BatchTimes, position_of: PositionOf
    ) -> pa.RecordBatch:
        assert self.late is not None, "a filter with a rule has a writer for late rows"
        places = pc.indices_nonzero(is_late)
        positions = [position_of(index) for index in places.to_pylist()]
        self.late.add(rows.take(places), self.event_time.column, positions, at)
        return rows.filter(pc.invert(is_late))


def _text(microseconds: int) -> str:
    try:
        return datetime.fromtimestamp(microseconds / 1_000_000, UTC).isoformat()
    except (OverflowError, ValueError):
        return f"after year {MAXYEAR}"


def _numbers(rows: pa.RecordBatch, column: str) -> pa.Array:
    return rows.column(column).cast(TIMESTAMP).cast(pa.int64())


@dataclass
class EventTimeFilterStep:
    """The filter as a separate step, for rows that need no decoding, as the function of `mapInArrow`.

    A row without an event time becomes a dead letter too: windows would drop it silently. `extra` names columns that
    are only used for the position and are not part of the output.
    """

    time_filter: EventTimeFilter
    letters: DeadLetterWriter
    position: Sequence[str] = ()
    extra: Sequence[str] = ()
    _seen: int = 0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                yield self._filter(batch)
                self._seen += batch.num_rows
        finally:
            self.letters.flush()
            self.time_filter.flush()

    def _filter(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch.drop_columns(list(self.extra)) if self.extra else batch
        origin: pa.Array | None = None
        times = rows.column(self.time_filter.event_time.column)
        if times.null_count:
            for index in pc.indices_nonzero(pc.is_null(times)).to_pylist():
                self._add_dead_letter("no-event-time", f"{self.time_filter.event_time.column} is null", batch, index)
            origin = pc.indices_nonzero(pc.is_valid(times))
            rows = rows.filter(pc.is_valid(times))

        def place(index: int) -> int:
            return index if origin is None else int(origin[index].as_py())

        passed, future = self.time_filter.check(rows, lambda index: self._position_of(batch, place(index)))
        for row in future:
            self._add_dead_letter(FUTURE, row.detail, batch, place(row.index))
        return passed

    def _add_dead_letter(self, reason: str, detail: str, batch: pa.RecordBatch, index: int) -> None:
        position = self._position_of(batch, index)
        if position is None:
            at = self.time_filter.clock.times()
            generation = self.letters.generation
            position = {"generation": generation, "batch": at.batch_id, "task": at.task, "row": self._seen + index}
        self.letters.add(reason, detail, position, json_texts(batch.slice(index, 1))[0].encode())

    def _position_of(self, batch: pa.RecordBatch, index: int) -> dict[str, object] | None:
        if not self.position:
            return None
        return {name.lstrip("_"): batch.column(name)[index].as_py() for name in self.position}
