"""What `deduplicate` does in its tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.core.processor import StepClock
from headrace.core.schema import TIMESTAMP
from headrace.processors._firsts import Flags, Seen, firsts
from headrace.processors._keyed import HIGH, KEYLESS, LOW

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import ListState, StatefulProcessorHandle

_MOST_PARTS = 16


@dataclass
class FirstsWork:
    """Of one bucket: what has been seen, in parts that are appended and now and then made one."""

    ttl: int
    time: str | None
    clock: StepClock
    considered: str | None = None
    """The column that says which rows are looked at at all; None: all are."""
    mark: str | None = None
    """The column for whether a row is a repeat; None: repeats are dropped."""
    _list: ListState | None = field(default=None, repr=False)

    def open(self, handle: StatefulProcessorHandle) -> None:
        """One list per bucket."""
        self._list = handle.getListState("seen", "entries binary")

    def take(self, rows: pa.Table) -> pa.Table:
        """The rows that are no repeats, or all of them with a mark."""
        assert self._list is not None, "opened before it is used"
        given = Seen(rows[HIGH].to_numpy(), rows[LOW].to_numpy(), times_of(rows, self.time, self.clock))
        parts = [Seen.from_bytes(bytes(part[0])) for part in self._list.get()]
        known = Seen.of(parts)
        judged = np.flatnonzero(self._considered(rows) & ~rows[KEYLESS].to_numpy())
        passed = np.ones(len(given), np.bool_)
        passed[judged] = firsts(given.where(judged), known, self.ttl)
        self._remember(known, len(parts), given.where(judged[passed[judged]]))
        own = rows.select([name for name in rows.column_names if name not in (HIGH, LOW, KEYLESS, self.considered)])
        return own.take(pa.array(np.flatnonzero(passed))) if self.mark is None else self._marked(own, rows, passed)

    def _considered(self, rows: pa.Table) -> Flags:
        return np.ones(rows.num_rows, np.bool_) if self.considered is None else rows[self.considered].to_numpy()

    def _marked(self, own: pa.Table, rows: pa.Table, passed: Flags) -> pa.Table:
        mark = pa.array(~passed, mask=~self._considered(rows))
        place = own.schema.get_field_index(self.mark)
        return own.append_column(self.mark, mark) if place < 0 else own.set_column(place, self.mark, mark)

    def _remember(self, known: Seen, parts: int, new: Seen) -> None:
        assert self._list is not None
        # rows may be late: of event time twice as much is kept
        bound = self.clock.planned() - self.ttl if self.time is None else self.clock.watermark() - 2 * self.ttl
        alive = known.time > bound
        if parts >= _MOST_PARTS or 2 * np.count_nonzero(alive) < len(known):
            left = Seen.of([known.where(alive), new])
            if len(left):
                self._list.put([(left.to_bytes(),)])
            else:
                self._list.clear()
        elif len(new):
            self._list.appendValue((new.to_bytes(),))


def times_of(rows: pa.Table, column: str | None, clock: StepClock) -> Any:
    """The times of rows in microseconds: those of a column, or of the batch."""
    now = clock.planned()
    if column is None:
        return np.full(rows.num_rows, now, np.int64)
    return rows[column].cast(TIMESTAMP).cast(pa.int64()).fill_null(now).combine_chunks().to_numpy()
