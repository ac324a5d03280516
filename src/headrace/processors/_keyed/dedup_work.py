"""What `deduplicate` does in its tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.core.filters import ColumnFilter, apply_all
from headrace.core.processor import StepClock
from headrace.core.schema import TIMESTAMP
from headrace.processors._keyed.dedup_rule import SeenKeys, firsts
from headrace.processors._keyed.keyed_filter import RowVerdict
from headrace.processors._keyed.state import HIGH, KEYLESS, LOW

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import ListState, StatefulProcessorHandle

_TIME, _CONSIDERED = "_time", "_considered"
_MOST_PARTS = 16


@dataclass
class FirstsWork:
    """Of one bucket: what has been seen, in parts that are appended and now and then made one."""

    ttl: int
    time: str | None
    clock: StepClock
    considered: tuple[ColumnFilter, ...] = ()
    """What must be true of rows that are looked at at all."""
    marks: bool = False
    """Whether repeats pass too, and are told by a mark."""
    _list: ListState | None = field(default=None, repr=False)

    def open(self, handle: StatefulProcessorHandle) -> None:
        """One list per bucket."""
        self._list = handle.getListState("seen", "entries binary")

    def asked(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """Their times, and whether they are looked at."""
        considered = apply_all(self.considered, rows)
        everything = pa.array(np.ones(rows.num_rows, np.bool_))
        times = pa.array(times_of(rows, self.time, self.clock))
        return {_TIME: times, _CONSIDERED: everything if considered is None else considered}

    def judge(self, rows: pa.Table) -> RowVerdict:
        """Those that are no repeats pass, or all of them with a mark."""
        assert self._list is not None, "opened before it is used"
        given = SeenKeys(rows[HIGH].to_numpy(), rows[LOW].to_numpy(), rows[_TIME].to_numpy())
        considered = rows[_CONSIDERED].to_numpy()
        parts = [SeenKeys.from_bytes(bytes(part[0])) for part in self._list.get()]
        known = SeenKeys.of(parts)
        judged = np.flatnonzero(considered & ~rows[KEYLESS].to_numpy())
        passed = np.ones(len(given), np.bool_)
        passed[judged] = firsts(given.where(judged), known, self.ttl)
        self._remember(known, len(parts), given.where(judged[passed[judged]]))
        if not self.marks:
            return RowVerdict(passed)
        return RowVerdict(np.ones(len(given), np.bool_), pa.array(~passed, mask=~considered))

    def _remember(self, known: SeenKeys, parts: int, new: SeenKeys) -> None:
        assert self._list is not None
        # rows may be late: of event time twice as much is kept
        bound = self.clock.planned() - self.ttl if self.time is None else self.clock.watermark() - 2 * self.ttl
        alive = known.time > bound
        if parts >= _MOST_PARTS or 2 * np.count_nonzero(alive) < len(known):
            left = SeenKeys.of([known.where(alive), new])
            if len(left):
                self._list.put([(left.to_bytes(),)])
            else:
                self._list.clear()
        elif len(new):
            self._list.appendValue((new.to_bytes(),))


def times_of(rows: pa.Table | pa.RecordBatch, column: str | None, clock: StepClock) -> Any:
    """The times of rows in microseconds: those of a column, or of the batch."""
    now = clock.planned()
    if column is None:
        return np.full(rows.num_rows, now, np.int64)
    return rows[column].cast(TIMESTAMP).cast(pa.int64()).fill_null(now).to_numpy()
