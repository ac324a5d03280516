"""Keeps and reads events by key, in the tasks of a `history` step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.core.processor import StepClock
from headrace.core.schema import TIMESTAMP
from headrace.processors._keyed.dedup_work import times_of
from headrace.processors._keyed.state import HIGH, KEYLESS, LOW
from headrace.processors._keyed.timers import Key
from headrace.processors.history.state import TIME, HistoryState
from headrace.processors.history.window import Numbers, TimeRanges, seen_by

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle


@dataclass(frozen=True)
class LookBack:
    """The time range of the events that a row sees."""

    last: int
    since: str | None = None
    until: str | None = None
    limit: int | None = None
    with_self: bool = False

    def range(self, rows: pa.Table, times: Numbers) -> TimeRanges:
        """The time range of each row; a row whose bounds are null sees nothing."""
        if self.since is None or self.until is None:
            return TimeRanges(times - self.last, times)
        return TimeRanges(_moments(rows[self.since], empty=1), _moments(rows[self.until], empty=0))


def _moments(column: pa.ChunkedArray, empty: int) -> Numbers:
    numbers: Numbers = column.cast(TIMESTAMP).cast(pa.int64()).fill_null(empty).combine_chunks().to_numpy()
    return numbers


@dataclass
class HistoryWork:
    """Reads the events of the keys in a batch, and adds their rows to the state of the bucket."""

    columns: tuple[str, ...]
    """The columns of an event."""
    schema: pa.Schema
    """The schema of an event: its time, and those columns."""
    name: str
    look: LookBack | None
    """None: rows are only kept, and leave the step unchanged."""
    keep: int
    time: str | None
    clock: StepClock
    _state: HistoryState | None = field(default=None, repr=False)

    def open(self, handle: StatefulProcessorHandle) -> None:
        self._state = HistoryState(handle, self.schema, self.keep)

    def take(self, rows: pa.Table) -> pa.Table:
        assert self._state is not None, "opened before it is used"
        now = self.clock.planned() if self.time is None else self.clock.watermark()
        self._state.forget(now)
        times = times_of(rows, self.time, self.clock)
        new: dict[Key, Numbers] = dict(self._keys(rows, times))
        events = {key: self._events(rows, times, places) for key, places in new.items()}
        tables = rows if self.look is None else self._with_past(rows, times, new, events)
        self._state.add(events, now)
        return tables.drop_columns([HIGH, LOW, KEYLESS])

    @staticmethod
    def _keys(rows: pa.Table, times: Numbers) -> Any:
        """Each key that is not null, and the places of its rows, in the order of their times."""
        high, low = rows[HIGH].to_numpy(), rows[LOW].to_numpy()
        order = np.lexsort((times, low, high))
        order = order[~rows[KEYLESS].to_numpy()[order]]
        changes = np.flatnonzero((high[order][1:] != high[order][:-1]) | (low[order][1:] != low[order][:-1])) + 1
        for places in np.split(order, changes) if len(order) else ():
            yield (int(high[places[0]]), int(low[places[0]])), places

    def _events(self, rows: pa.Table, times: Numbers, places: Numbers) -> pa.Table:
        chosen = rows.select(list(self.columns)).take(pa.array(places))
        return pa.Table.from_arrays([pa.array(times[places]), *chosen.columns], schema=self.schema)

    def _with_past(
        self, rows: pa.Table, times: Numbers, new: dict[Key, Numbers], events: dict[Key, pa.Table]
    ) -> pa.Table:
        assert self._state is not None
        assert self.look is not None
        looks = self.look.range(rows, times)
        found: list[Numbers] = [np.zeros(0, np.int64)] * rows.num_rows
        known, total = [], 0
        for key, places in new.items():
            mine = TimeRanges(looks.since[places], looks.until[places])
            past = self._state.between(key, int(mine.since.min()), int(mine.until.max()))
            seen = seen_by(past[TIME].to_numpy(), times[places], mine, self.look.limit, self.look.with_self)
            for place, one in zip(places.tolist(), seen, strict=True):
                found[place] = one + total
            known += [past, events[key]]
            total += past.num_rows + len(places)
        return rows.append_column(self.name, listed(found, known, self.schema))


def listed(found: list[Numbers], known: list[pa.Table], schema: pa.Schema) -> pa.Array:
    """For each row the list of the events at its places."""
    events = pa.concat_tables([schema.empty_table(), *known]).combine_chunks()
    chosen = events.drop_columns([TIME]).take(pa.array(np.concatenate([np.zeros(0, np.int64), *found])))
    fields = [chosen.column(name).combine_chunks() for name in chosen.column_names]
    structs = pa.StructArray.from_arrays(fields, fields=[chosen.schema.field(name) for name in chosen.column_names])
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in found])])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs)
