"""Decodes records to rows in Arrow batches: only used columns, with filters of the SQL applied early.

Bad records become dead letters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.filters import ColumnFilter, apply_all
from headrace.core.format import Bad, Decoder
from headrace.core.schema import TIMESTAMP
from headrace.core.sizes import binary_bytes
from headrace.core.source import PackedPosition
from headrace.core.tallies.step_tally import BYTES_IN, StepTally
from headrace.engine.inputs.event_time_filter import FUTURE, EventTimeFilter
from headrace.engine.letters.dead_letters import DeadLetterWriter
from headrace.project.model import EventTime, OnError

PACKED = "_position"
_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}


class BadRecordError(Exception):
    """A record could not be decoded and its stream says `on_error: fail`."""


@dataclass
class DecodeStep:
    """Decodes one stream for one flow, as the function of `mapInArrow`.

    Input: `value`, then the columns of the position or `_position`, which packs them, and the `metadata` columns.
    Output: the decoder's columns, then `metadata`. Every record of the input is in the output, dropped by a filter, a
    dead letter or, with a time filter, a late row.
    """

    decoder: Decoder
    position: Sequence[str]
    metadata: Sequence[str]
    filters: Sequence[ColumnFilter]
    event_time: EventTime | None
    on_error: OnError
    letters: DeadLetterWriter
    packed: PackedPosition | None = None
    time_filter: EventTimeFilter | None = None
    tally: StepTally | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                if self.tally is not None:
                    self.tally.add(BYTES_IN, self._size(batch))
                yield self._decode(batch)
        finally:
            self.letters.flush()
            if self.time_filter is not None:
                self.time_filter.flush()
            if self.tally is not None:
                self.tally.flush()

    def _size(self, batch: pa.RecordBatch) -> int:
        """The bytes of the values and, if the flow uses them, of the keys."""
        binary = [batch.column(name) for name in self.metadata if pa.types.is_binary(batch.schema.field(name).type)]
        return sum(binary_bytes(column) for column in (batch.column(0), *binary))

    def output_schema(self) -> pa.Schema:
        """The decoder's columns, the event time as a timestamp."""
        if self.event_time is None:
            return self.decoder.schema
        index = self.decoder.schema.get_field_index(self.event_time.column)
        return self.decoder.schema.set(index, pa.field(self.event_time.column, TIMESTAMP))

    def _decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = batch.column(0)
        decoded = self.decoder.decode(values)
        rows = decoded.rows
        good = _good_indexes(len(values), decoded.bad)
        bad = list(decoded.bad)
        if self.event_time is not None:
            rows, good, more = _with_event_time(rows, good, self.event_time)
            bad += more
        if bad:
            self._handle_bad(bad, batch)
        result, good = self._assemble(rows, good, batch)
        return result if self.time_filter is None else self._filter_by_time(self.time_filter, result, good, batch)

    def _assemble(
        self, rows: pa.RecordBatch, good: pa.Array | None, batch: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, pa.Array | None]:
        """The rows that pass the filters, and the indexes of their records; None for all."""
        columns = list(rows.columns)
        for name in self.metadata:
            column = batch.column(name)
            columns.append(column if good is None else column.take(good))
        result = pa.RecordBatch.from_arrays(columns, names=[*rows.schema.names, *self.metadata])
        mask = apply_all(self.filters, result)
        if mask is None:
            return result, good
        return result.filter(mask), pc.indices_nonzero(mask) if good is None else good.filter(mask)

    def _filter_by_time(
        self, time_filter: EventTimeFilter, rows: pa.RecordBatch, good: pa.Array | None, batch: pa.RecordBatch
    ) -> pa.RecordBatch:
        def record(index: int) -> int:
            return index if good is None else int(good[index].as_py())

        passed, future = time_filter.check(rows, lambda index: self._position_of(batch, record(index)) or None)
        for row in future:
            # the record itself is well-formed, so `on_error` does not apply
            self._add_dead_letter(Bad(record(row.index), FUTURE, row.detail), batch)
        return passed

    def _handle_bad(self, records: list[Bad], batch: pa.RecordBatch) -> None:
        for bad in sorted(records, key=lambda record: record.index):
            if self.on_error == "fail":
                position = self._position_of(batch, bad.index)
                raise BadRecordError(f"record {position} of stream '{self.letters.stream}': {bad.reason}: {bad.detail}")
            self._add_dead_letter(bad, batch)

    def _add_dead_letter(self, bad: Bad, batch: pa.RecordBatch) -> None:
        position = self._position_of(batch, bad.index)
        metadata = {name: batch.column(name)[bad.index].as_py() for name in self.metadata}
        self.letters.add(bad.reason, bad.detail, position, batch.column(0)[bad.index].as_py(), metadata)

    def _position_of(self, batch: pa.RecordBatch, index: int) -> dict[str, object]:
        if self.packed is not None:
            position = self.packed.unpack(batch.column(PACKED)[index].as_py())
        else:
            position = {name: batch.column(name)[index].as_py() for name in self.position}
        return {name.lstrip("_"): value for name, value in position.items()}


def _good_indexes(length: int, records: Sequence[Bad]) -> pa.Array | None:
    """The indexes of the good records, or None when all are good."""
    if not records:
        return None
    bad = {record.index for record in records}
    return pa.array([index for index in range(length) if index not in bad], type=pa.int64())


def _with_event_time(
    rows: pa.RecordBatch, good: pa.Array | None, event_time: EventTime
) -> tuple[pa.RecordBatch, pa.Array | None, list[Bad]]:
    """The rows with the event time as a timestamp. A record without one is bad: windows would drop it silently."""
    index = rows.schema.get_field_index(event_time.column)
    values = rows.column(index)
    times = _timestamps(values, event_time.unit)
    rows = rows.set_column(index, pa.field(event_time.column, TIMESTAMP), times)
    if times.null_count == 0:
        return rows, good, []
    valid = pc.is_valid(times)
    origin = good if good is not None else pa.array(range(len(values)), type=pa.int64())
    bad = [
        Bad(origin[i].as_py(), "no-event-time", f"{event_time.column} is {values[i].as_py()!r}")
        for i in pc.indices_nonzero(pc.is_null(times)).to_pylist()
    ]
    return rows.filter(valid), origin.filter(valid), bad


def _timestamps(values: pa.Array, unit: str) -> pa.Array:
    if pa.types.is_timestamp(values.type):
        return values if values.type == TIMESTAMP else values.cast(TIMESTAMP)
    if pa.types.is_string(values.type):
        return _parse(values)
    if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        numbers = values.cast(pa.int64(), safe=False)
        micros = pc.divide(numbers, 1000) if unit == "ns" else pc.multiply(numbers, _UNITS[unit])
        return micros.cast(TIMESTAMP)
    return pa.nulls(len(values), TIMESTAMP)


def _parse(texts: pa.Array) -> pa.Array:
    try:
        # a text without a zone is UTC
        return pc.if_else(
            pc.match_substring_regex(texts, r"(Z|[+-]\d\d:?\d\d)$"), texts, pc.binary_join_element_wise(texts, "Z", "")
        ).cast(TIMESTAMP)
    except pa.ArrowInvalid:
        return pa.array([_parse_one(text) for text in texts.to_pylist()], type=TIMESTAMP)


def _parse_one(text: str | None) -> object:
    if text is None:
        return None
    try:
        parsed = pa.scalar(text if text.endswith("Z") or "+" in text[10:] or "-" in text[10:] else text + "Z")
        return parsed.cast(TIMESTAMP).as_py()
    except pa.ArrowInvalid:
        return None
