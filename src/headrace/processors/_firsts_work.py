"""What `deduplicate` does in its tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.core.processor import StepClock
from headrace.core.schema import TIMESTAMP
from headrace.processors._firsts import Seen, firsts
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
    _list: ListState | None = field(default=None, repr=False)

    def open(self, handle: StatefulProcessorHandle) -> None:
        """One list per bucket."""
        self._list = handle.getListState("seen", "entries binary")

    def take(self, rows: pa.Table) -> pa.Table:
        """The rows that are no repeats."""
        assert self._list is not None, "opened before it is used"
        given = Seen(rows[HIGH].to_numpy(), rows[LOW].to_numpy(), times_of(rows, self.time, self.clock))
        parts = [Seen.from_bytes(bytes(part[0])) for part in self._list.get()]
        known = Seen.of(parts)
        passed = firsts(given, known, self.ttl)
        keyless = rows[KEYLESS].to_numpy()
        self._remember(known, len(parts), given.where(passed & ~keyless))
        own = [name for name in rows.column_names if name not in (HIGH, LOW, KEYLESS)]
        return rows.select(own).take(pa.array(np.flatnonzero(passed | keyless)))

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
