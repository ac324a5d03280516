"""Processes the sessions of a bucket, in the tasks of a `sessions` step."""

from __future__ import annotations

import pickle
from bisect import bisect_left
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.core.processor import StepClock, StepLetters
from headrace.processors._keyed.state import HIGH, KEYLESS, LOW
from headrace.processors._keyed.timers import Key, Timers
from headrace.processors.sessions.run import OpenSession, SessionRun, Timed

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessorHandle

TIME = "_time"
"""The column with the time of a row: null if it has none, or an implausible one."""
LATE, FUTURE, TIMELESS, NO_KEY, FULL = (
    "late-row", "future-event-time", "no-event-time", "no-session-key", "session-limit",
)  # fmt: skip
# timers fire late by up to this share of the time that a session is kept
_SLICES = 512
_SHORTEST = 1_000_000


@dataclass
class SessionState:
    """The state of a key: its session, the rows that wait for earlier ones, and its timer slot."""

    span: OpenSession | None = None
    waiting: list[Timed] = field(default_factory=list)
    slot: int | None = None

    def to_bytes(self) -> bytes:
        """Pickled: exact for every value that Arrow returns."""
        span = None if self.span is None else (self.span.last, self.span.rows, self.span.finished, self.span.memory)
        return pickle.dumps((span, self.waiting, self.slot), pickle.HIGHEST_PROTOCOL)

    @staticmethod
    def from_bytes(data: bytes) -> SessionState:
        """Unpickles bytes of the flow's own checkpoint, never data from outside."""
        span, waiting, slot = pickle.loads(data)  # noqa: S301
        return SessionState(None if span is None else OpenSession(*span), waiting, slot)


@dataclass
class _SessionRows:
    """Splits the rows of a batch by key, and turns unusable ones into dead letters."""

    run: SessionRun
    columns: tuple[str, ...]
    time: str
    """The time column, for messages."""
    clock: StepClock
    letters: StepLetters

    def by_key(self, rows: pa.Table, late: int | None) -> dict[Key, list[Timed]]:
        """The rows with their times. Rows without a time, before `late` or without a key become dead letters."""
        rows_of: dict[Key, list[Timed]] = {}
        if not rows.num_rows:
            return rows_of
        times = rows[TIME].cast(pa.int64()).to_pylist()
        halves = zip(rows[HIGH].to_pylist(), rows[LOW].to_pylist(), strict=True)
        values = rows.select(list(self.columns)).to_pylist()
        keyless = rows[KEYLESS].to_pylist()
        for place, (time, key, row) in enumerate(zip(times, halves, values, strict=True)):
            if keyless[place]:
                self.keep(rows, place, NO_KEY, "all columns of its key are null")
            elif time is None or (late is not None and time < late):
                self.refuse(rows, place, time, late)
            else:
                rows_of.setdefault(key, []).append((time, row))
        return rows_of

    def refuse(self, rows: pa.Table, place: int, time: int | None, late: int | None) -> None:
        """Keep a row whose time is too early, null or too far ahead as a dead letter."""
        value = rows[self.time][place].as_py() if self.time in rows.column_names else None
        if time is not None:
            self.keep(rows, place, LATE, f"{self.time} is {value}, and rows from {_written(late or 0)} on are awaited")
        elif value is None:
            self.keep(rows, place, TIMELESS, f"{self.time} is null")
        else:
            self.keep(rows, place, FUTURE, f"{self.time} is {value}, the batch is of {_written(self.clock.planned())}")

    def keep(self, rows: pa.Table, place: int, reason: str, detail: str) -> None:
        own = [name for name in rows.column_names if name not in (HIGH, LOW, KEYLESS, TIME)]
        self.letters.keep(rows.select(own).slice(place, 1).combine_chunks().to_batches()[0], 0, reason, detail)


def _written(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds / 1_000_000, UTC).isoformat()


@dataclass
class BatchSessions(_SessionRows):
    """All sessions of some keys at once: all rows are available, so every session is finished."""

    def __call__(self, rows: pa.Table) -> pa.Table:
        output = []
        for _, mine in sorted(self.by_key(rows, None).items()):
            output += self.run.advance(None, self.run.rules.sorted(mine), None)[1]
        self.letters.flush()
        return self.run.table(output)


@dataclass
class SessionWork(_SessionRows):
    """The sessions of one bucket: rows wait until the watermark has passed them."""

    _open: MapState | None = field(default=None, repr=False)
    _timers: Timers | None = field(default=None, repr=False)

    def open(self, handle: StatefulProcessorHandle) -> None:
        self._open = handle.getMapState("sessions", "high bigint, low bigint", "kept binary")
        self._timers = Timers(handle)

    def take(self, rows: pa.Table, watermark: int) -> pa.Table:
        assert self._timers is not None, "opened before it is used"
        output: list[dict[str, Any]] = []
        begun: dict[int, list[Key]] = {}
        # the watermark of the previous batch: rows that are passed on now are before the current one, so order holds
        rows_of = self.by_key(rows, self.clock.watermark())
        due: dict[Key, set[int]] = {}
        for slot, key in self._timers.take(lambda slot: slot <= watermark):
            due.setdefault(key, set()).add(slot)
        for key in sorted({*rows_of, *due}):
            state, new = self._read(key), rows_of.get(key, [])
            is_due = state.slot in due.get(key, ())
            if not new and not is_due:
                continue  # it was moved to another slot meanwhile
            output += self._advance(state, new, watermark)
            ahead = self._next(state)
            if ahead is not None and (is_due or state.slot is None or ahead < state.slot):
                state.slot = ahead
                begun.setdefault(ahead, []).append(key)
            self._write(key, state)
        self._timers.add(begun)
        self.letters.flush()
        return self.run.table(output)

    def due(self) -> int | None:
        assert self._timers is not None, "opened before it is used"
        return self._timers.first()

    def _advance(self, state: SessionState, new: list[Timed], watermark: int) -> list[dict[str, Any]]:
        rows = self.run.rules.sorted([*state.waiting, *new])
        passed = bisect_left(rows, watermark, key=lambda one: one[0])
        state.waiting = self._within_limit(rows[passed:])
        state.span, output = self.run.advance(state.span, rows[:passed], watermark)
        return output

    def _within_limit(self, rows: list[Timed]) -> list[Timed]:
        limit = self.run.rules.limit
        for time, row in rows[limit:]:
            detail = f"{limit} rows of its key wait already; its time is {_written(time)}"
            self.letters.keep(pa.RecordBatch.from_pylist([row]), 0, FULL, detail)
        return rows[:limit]

    def _next(self, state: SessionState) -> int | None:
        """The next timer slot of a key: the end of a slice of time. None: it has no state."""
        moments = [state.waiting[0][0]] if state.waiting else []
        moments += [self.run.rules.due(state.span)] if state.span is not None else []
        length = max((self.run.rules.gap + self.run.rules.keep) // _SLICES, _SHORTEST)
        return (min(moments) // length + 1) * length if moments else None

    def _read(self, key: Key) -> SessionState:
        assert self._open is not None
        value = self._open.getValue(key)
        return SessionState() if value is None else SessionState.from_bytes(bytes(value[0]))

    def _write(self, key: Key, state: SessionState) -> None:
        assert self._open is not None
        if state.span is None and not state.waiting:
            self._open.removeKey(key)
        else:
            self._open.updateValue(key, (state.to_bytes(),))
