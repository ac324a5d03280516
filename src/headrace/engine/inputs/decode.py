"""Records to rows, in Arrow batches: decode what is used, keep what is bad, drop early what SQL would drop."""

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
from headrace.engine.inputs.event_time_filter import FUTURE, Gate
from headrace.engine.letters.dead_letters import DeadLetterWriter
from headrace.project.model import EventTime, OnError

PACKED = "_position"
_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}


class BadRecordError(Exception):
    """A record could not be decoded and its stream says `on_error: fail`."""


@dataclass
class DecodeStep:
    """Decodes one stream for one flow; the function given to `mapInArrow`.

    Input: `value`, then the columns of the position or `_position`, which packs them, and the `metadata` columns.
    Output: the decoder's columns, then `metadata`. Every record of the input is in the output, filtered out, in the
    letter box or, where there is a gate, among the late rows.
    """

    decoder: Decoder
    position: Sequence[str]
    metadata: Sequence[str]
    filters: Sequence[ColumnFilter]
    event_time: EventTime | None
    on_error: OnError
    letters: DeadLetterWriter
    packed: PackedPosition | None = None
    gate: Gate | None = None
    tally: StepTally | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode all batches of a task."""
        try:
            for batch in batches:
                if self.tally is not None:
                    self.tally.add(BYTES_IN, self._size(batch))
                yield self._one(batch)
        finally:
            self.letters.flush()
            if self.gate is not None:
                self.gate.flush()
            if self.tally is not None:
                self.tally.flush()

    def _size(self, batch: pa.RecordBatch) -> int:
        """The bytes of the values and, where they are read, of the keys."""
        binary = [batch.column(name) for name in self.metadata if pa.types.is_binary(batch.schema.field(name).type)]
        return sum(binary_bytes(column) for column in (batch.column(0), *binary))

    def output_schema(self) -> pa.Schema:
        """The decoder's columns, the event time as a timestamp."""
        if self.event_time is None:
            return self.decoder.schema
        index = self.decoder.schema.get_field_index(self.event_time.column)
        return self.decoder.schema.set(index, pa.field(self.event_time.column, TIMESTAMP))

    def _one(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = batch.column(0)
        decoded = self.decoder.decode(values)
        rows = decoded.rows
        good = _without(len(values), decoded.bad)
        bad = list(decoded.bad)
        if self.event_time is not None:
            rows, good, more = _with_event_time(rows, good, self.event_time)
            bad += more
        if bad:
            self._keep(bad, batch)
        result, good = self._assemble(rows, good, batch)
        return result if self.gate is None else self._gated(self.gate, result, good, batch)

    def _assemble(
        self, rows: pa.RecordBatch, good: pa.Array | None, batch: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, pa.Array | None]:
        """The rows that pass the filters, and which records they are; None for all."""
        columns = list(rows.columns)
        for name in self.metadata:
            column = batch.column(name)
            columns.append(column if good is None else column.take(good))
        result = pa.RecordBatch.from_arrays(columns, names=[*rows.schema.names, *self.metadata])
        mask = apply_all(self.filters, result)
        if mask is None:
            return result, good
        return result.filter(mask), pc.indices_nonzero(mask) if good is None else good.filter(mask)

    def _gated(self, gate: Gate, rows: pa.RecordBatch, good: pa.Array | None, batch: pa.RecordBatch) -> pa.RecordBatch:
        def record(index: int) -> int:
            return index if good is None else int(good[index].as_py())

        passed, ahead = gate.check(rows, lambda index: self._position_of(batch, record(index)) or None)
        for one in ahead:
            # the record itself is well made, so `on_error` has no say
            self._letter(Bad(record(one.index), FUTURE, one.detail), batch)
        return passed

    def _keep(self, bad: list[Bad], batch: pa.RecordBatch) -> None:
        for one in sorted(bad, key=lambda b: b.index):
            if self.on_error == "fail":
                position = self._position_of(batch, one.index)
                raise BadRecordError(f"record {position} of stream '{self.letters.stream}': {one.reason}: {one.detail}")
            self._letter(one, batch)

    def _letter(self, one: Bad, batch: pa.RecordBatch) -> None:
        position = self._position_of(batch, one.index)
        metadata = {name: batch.column(name)[one.index].as_py() for name in self.metadata}
        self.letters.add(one.reason, one.detail, position, batch.column(0)[one.index].as_py(), metadata)

    def _position_of(self, batch: pa.RecordBatch, index: int) -> dict[str, object]:
        if self.packed is not None:
            found = self.packed.unpack(batch.column(PACKED)[index].as_py())
        else:
            found = {name: batch.column(name)[index].as_py() for name in self.position}
        return {name.lstrip("_"): value for name, value in found.items()}


def _without(length: int, bad: Sequence[Bad]) -> pa.Array | None:
    """The indexes of the good records, or None when all are good."""
    if not bad:
        return None
    gone = {one.index for one in bad}
    return pa.array([index for index in range(length) if index not in gone], type=pa.int64())


def _with_event_time(
    rows: pa.RecordBatch, good: pa.Array | None, event_time: EventTime
) -> tuple[pa.RecordBatch, pa.Array | None, list[Bad]]:
    """The rows with the event time as a timestamp. A record without one is bad: windows would drop it silently."""
    index = rows.schema.get_field_index(event_time.column)
    given = rows.column(index)
    times = _timestamps(given, event_time.unit)
    rows = rows.set_column(index, pa.field(event_time.column, TIMESTAMP), times)
    if times.null_count == 0:
        return rows, good, []
    valid = pc.is_valid(times)
    origin = good if good is not None else pa.array(range(len(given)), type=pa.int64())
    bad = [
        Bad(origin[i].as_py(), "no-event-time", f"{event_time.column} is {given[i].as_py()!r}")
        for i in pc.indices_nonzero(pc.is_null(times)).to_pylist()
    ]
    return rows.filter(valid), origin.filter(valid), bad


def _timestamps(given: pa.Array, unit: str) -> pa.Array:
    if pa.types.is_timestamp(given.type):
        return given if given.type == TIMESTAMP else given.cast(TIMESTAMP)
    if pa.types.is_string(given.type):
        return _parsed(given)
    if pa.types.is_integer(given.type) or pa.types.is_floating(given.type):
        numbers = given.cast(pa.int64(), safe=False)
        micros = pc.divide(numbers, 1000) if unit == "ns" else pc.multiply(numbers, _UNITS[unit])
        return micros.cast(TIMESTAMP)
    return pa.nulls(len(given), TIMESTAMP)


def _parsed(given: pa.Array) -> pa.Array:
    try:
        # a text without a zone is UTC
        return pc.if_else(
            pc.match_substring_regex(given, r"(Z|[+-]\d\d:?\d\d)$"), given, pc.binary_join_element_wise(given, "Z", "")
        ).cast(TIMESTAMP)
    except pa.ArrowInvalid:
        return pa.array([_parse_one(text) for text in given.to_pylist()], type=TIMESTAMP)


def _parse_one(text: str | None) -> object:
    if text is None:
        return None
    try:
        parsed = pa.scalar(text if text.endswith("Z") or "+" in text[10:] or "-" in text[10:] else text + "Z")
        return parsed.cast(TIMESTAMP).as_py()
    except pa.ArrowInvalid:
        return None
