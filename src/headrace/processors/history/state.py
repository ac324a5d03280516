"""The state of `history`: the events of a key by slices of time, in Spark's state.

Timers of the bucket list the keys of each slice; a slice is removed when it is older than the history is kept.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from headrace.core.errors import ProjectError
from headrace.processors._keyed.timers import Key, Timers, numbers

TIME = "_time"
# a slice is removed as a whole, so events are kept longer by this share of the time
_SLICES = 64
_SHORTEST = 1_000_000


class HistoryState:
    """The events of the keys of the bucket that Spark is processing."""

    def __init__(self, handle: StatefulProcessorHandle, schema: pa.Schema, keep: int) -> None:
        key = "high bigint, low bigint"
        self._events = handle.getMapState("events", f"{key}, slice bigint", "rows binary")
        self._slices = handle.getMapState("slices", key, "slices binary")
        self._timers = Timers(handle)
        self._schemas = handle.getMapState("schemas", "digest bigint", "schema binary")
        self._schema = schema
        self._digest = _digest(schema)
        self._keep = keep
        self._length = max(keep // _SLICES, _SHORTEST)

    def forget(self, now: int) -> None:
        """Remove the slices that are too old."""
        for slice_, key in self._timers.take(lambda slice_: self._is_over(slice_, now)):
            self._forget_slice(key, slice_)

    def _forget_slice(self, key: Key, slice_: int) -> None:
        self._events.removeKey((*key, slice_))
        left = [one for one in self._slices_of(key) if one != slice_]
        if left:
            self._slices.updateValue(key, (numbers(left),))
        else:
            self._slices.removeKey(key)

    def between(self, key: Key, since: int, until: int) -> pa.Table:
        """The events of a key in the slices of this time range, in the order of their times."""
        first, last = since // self._length, until // self._length
        slices = [self._read((*key, one)) for one in sorted(self._slices_of(key)) if first <= one <= last]
        return pa.Table.from_batches([one for one in slices if one is not None], self._schema)

    def add(self, new: dict[Key, pa.Table], now: int) -> None:
        """Add events of several keys, sorted by time."""
        begun: dict[int, list[Key]] = {}
        for key, events in new.items():
            known = self._slices_of(key)
            slices = np.floor_divide(events[TIME].to_numpy(), self._length)
            fresh = []
            for slice_ in np.unique(slices).tolist():
                if self._is_over(slice_, now):
                    continue
                own = events.filter(pa.array(slices == slice_))
                self._write((*key, slice_), own, slice_ in known)
                if slice_ not in known:
                    fresh.append(slice_)
                    begun.setdefault(slice_, []).append(key)
            if fresh:
                self._slices.updateValue(key, (numbers([*known, *fresh]),))
        self._timers.add(begun)

    def _is_over(self, slice_: int, now: int) -> bool:
        return (slice_ + 1) * self._length <= now - self._keep

    def _slices_of(self, key: Key) -> list[int]:
        found = self._slices.getValue(key)
        return [] if found is None else np.frombuffer(bytes(found[0]), "<i8").tolist()

    def _write(self, place: tuple[int, int, int], events: pa.Table, known: bool) -> None:
        before = self._read(place) if known else None
        if before is not None:
            events = pa.concat_tables([pa.Table.from_batches([before]), events])
            events = events.take(np.argsort(events[TIME].to_numpy(), kind="stable"))
        batch = events.combine_chunks().to_batches()[0]
        if not self._schemas.containsKey((self._digest,)):
            self._schemas.updateValue((self._digest,), (self._schema.serialize().to_pybytes(),))
        self._events.updateValue(place, (numbers([self._digest]) + batch.serialize().to_pybytes(),))

    def _read(self, place: tuple[int, int, int]) -> pa.RecordBatch | None:
        value = self._events.getValue(place)
        if value is None:
            return None
        data = bytes(value[0])
        digest = int(np.frombuffer(data[:8], "<i8")[0])
        message = pa.py_buffer(data[8:])
        if digest == self._digest:
            return pa.ipc.read_record_batch(message, self._schema)
        kept = self._schemas.getValue((digest,))
        assert kept is not None, "a schema is kept with the first events that have it"
        schema = pa.ipc.read_schema(pa.py_buffer(bytes(kept[0])))
        return aligned(pa.ipc.read_record_batch(message, schema), self._schema)


def aligned(events: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Events that were kept with other columns: new columns are null."""
    columns = []
    for field in schema:
        index = events.schema.get_field_index(field.name)
        if index < 0:
            columns.append(pa.nulls(events.num_rows, field.type))
            continue
        try:
            columns.append(events.column(index).cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ProjectError(
                "history-columns",
                f"'{field.name}' is {field.type} now, and events are remembered in which it is "
                f"{events.schema.field(index).type}",
                hint="give the column another name, or begin a new generation, which forgets them",
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _digest(schema: pa.Schema) -> int:
    return int.from_bytes(hashlib.sha256(schema.serialize().to_pybytes()).digest()[:8], "little", signed=True)
