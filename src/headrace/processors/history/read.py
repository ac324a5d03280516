"""Reads events from the lake table of another flow, in the tasks of a `history` step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from headrace.core.processor import Batches, StepClock
from headrace.core.schema import TIMESTAMP
from headrace.processors._keyed.dedup_work import times_of
from headrace.processors._lookup.lookup import index_of
from headrace.processors._lookup.tables import LookupTable, PinnedVersions
from headrace.processors.history.state import TIME
from headrace.processors.history.window import Numbers, TimeRanges, seen_by
from headrace.processors.history.work import LookBack, listed


@dataclass(frozen=True)
class EventTable:
    """A table of events: its key columns, its time column and the columns of an event."""

    place: LookupTable
    keys: pa.Schema
    time: str
    events: pa.Schema

    @property
    def schema(self) -> pa.Schema:
        """The columns of an event, with its time."""
        return pa.schema([(TIME, pa.int64()), *self.events])

    def read(self, version: str, keys: Sequence[pa.Array], since: int, until: int) -> tuple[pa.Table, pa.Table]:
        """Events of some keys between two times, sorted by time, and their keys."""
        names = list(dict.fromkeys([*self.keys.names, self.time, *self.events.names]))
        at = ds.field(self.time)
        where = (at >= pa.scalar(since, TIMESTAMP)) & (at <= pa.scalar(until, TIMESTAMP))
        for key, values in zip(self.keys, keys, strict=True):
            # a number that is too large for the table may match others here: they are removed later
            where &= ds.field(key.name).isin(pc.unique(values).cast(key.type, safe=False))
        rows = self.place.read(version, names, where)
        rows = rows.take(pc.sort_indices(rows[self.time]))
        times = rows[self.time].cast(TIMESTAMP).cast(pa.int64())
        events = rows.select(self.events.names).cast(self.events)
        return pa.Table.from_arrays([times, *events.columns], schema=self.schema), rows.select(self.keys.names)


@dataclass
class ReadWork:
    """Looks up the events of the keys of each Arrow batch, in the table version of its micro-batch."""

    table: EventTable
    name: str
    look: LookBack
    time: str | None
    clock: StepClock
    pins: PinnedVersions

    def __call__(self, batches: Batches) -> Batches:
        version: str | None = None
        for batch in batches:
            if version is None:
                version = self.pins.version(self.clock.number(), self.table.place.version)
            yield batch.append_column(self.name, self._past(batch, version))

    def _past(self, batch: pa.RecordBatch, version: str) -> pa.Array:
        rows = pa.Table.from_batches([batch])
        seen_events: list[Numbers] = [np.zeros(0, np.int64)] * rows.num_rows
        keys = [batch.column(name) for name in self.table.keys.names]
        whole = np.flatnonzero(np.all([pc.is_valid(key).to_numpy(zero_copy_only=False) for key in keys], axis=0))
        if not version or not len(whole):
            return listed(seen_events, [], self.table.schema)
        looks = self.look.range(rows, times_of(rows, self.time, self.clock))
        chosen = [key.take(pa.array(whole)) for key in keys]
        since, until = int(looks.since[whole].min()), int(looks.until[whole].max())
        events, their_keys = self.table.read(version, chosen, since, until)
        times = events[TIME].to_numpy()
        for mine, theirs in _matched(chosen, their_keys):
            for place in whole[mine].tolist():
                moment = TimeRanges(looks.since[place : place + 1], looks.until[place : place + 1])
                # the row itself is the only new event, which it does not see
                seen = seen_by(times[theirs], looks.until[place : place + 1], moment, self.look.limit, False)[0]
                seen_events[place] = theirs[seen]
        return listed(seen_events, [events], self.table.schema)


def _matched(keys: Sequence[pa.Array], theirs: pa.Table) -> Iterator[tuple[Any, Any]]:
    """For each key: its places among the rows and among the events."""
    if not theirs.num_rows:
        return
    mine = index_of(keys)
    distinct = mine.unique()
    sides = []
    for numbers in (distinct.get_indexer(mine), distinct.get_indexer(index_of(theirs.columns))):
        order = np.argsort(numbers, kind="stable")
        sides.append(np.split(order, np.searchsorted(numbers[order], np.arange(len(distinct) + 1))))
    # the parts before the first and after the last key belong to no key
    yield from zip(sides[0][1:-1], sides[1][1:-1], strict=True)
