"""The keyed filter of `deduplicate`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.core.filters import ColumnFilter, apply_all
from headrace.core.processor import StepClock
from headrace.core.schema import TIMESTAMP
from headrace.processors._keyed.dedup_rule import SeenKeys, first_rows
from headrace.processors._keyed.keyed_filter import FilterDecision
from headrace.processors._keyed.state import HIGH, KEYLESS, LOW

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import ListState, StatefulProcessorHandle

_TIME, _CONSIDERED = "_time", "_considered"
_MOST_PARTS = 16


@dataclass
class DedupFilter:
    """Drops or marks repeats. The state of a bucket is a list of seen keys in parts, which are merged now and then."""

    ttl: int
    time: str | None
    clock: StepClock
    considered: tuple[ColumnFilter, ...] = ()
    """Rows that do not fulfil these conditions always pass."""
    marks: bool = False
    """Whether repeats pass too, with a mark."""
    _list: ListState | None = field(default=None, repr=False)

    def open(self, handle: StatefulProcessorHandle) -> None:
        self._list = handle.getListState("seen", "entries binary")

    def inputs(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        considered = apply_all(self.considered, rows)
        everything = pa.array(np.ones(rows.num_rows, np.bool_))
        times = pa.array(times_of(rows, self.time, self.clock))
        return {_TIME: times, _CONSIDERED: everything if considered is None else considered}

    def decide(self, rows: pa.Table) -> FilterDecision:
        assert self._list is not None, "opened before it is used"
        keys = SeenKeys(rows[HIGH].to_numpy(), rows[LOW].to_numpy(), rows[_TIME].to_numpy())
        considered = rows[_CONSIDERED].to_numpy()
        parts = [SeenKeys.from_bytes(bytes(part[0])) for part in self._list.get()]
        known = SeenKeys.of(parts)
        judged = np.flatnonzero(considered & ~rows[KEYLESS].to_numpy())
        passed = np.ones(len(keys), np.bool_)
        passed[judged] = first_rows(keys.where(judged), known, self.ttl)
        self._remember(known, len(parts), keys.where(judged[passed[judged]]))
        if not self.marks:
            return FilterDecision(passed)
        return FilterDecision(np.ones(len(keys), np.bool_), pa.array(~passed, mask=~considered))

    def _remember(self, known: SeenKeys, parts: int, new: SeenKeys) -> None:
        assert self._list is not None
        # rows may be late: with event time the state covers twice the ttl
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
    """The times of rows in microseconds: those of a column, or the time of the batch."""
    now = clock.planned()
    if column is None:
        return np.full(rows.num_rows, now, np.int64)
    return rows[column].cast(TIMESTAMP).cast(pa.int64()).fill_null(now).to_numpy()
