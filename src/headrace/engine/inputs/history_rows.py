"""Rows of history in a Python worker: the columns of the stream, from files that may lay them out differently."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from headrace.core.schema import TIMESTAMP
from headrace.sources.files.paths import is_local

FILE, ROW = "_history_file", "_history_row"
"""Where a row of history stands, as long as it is on its way to the gate."""
_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_BATCH_ROWS = 65_536
_WIDER: dict[str, tuple[str, ...]] = {
    "int8": ("int16", "int32", "int64"),
    "uint8": ("int16", "int32", "int64"),
    "int16": ("int32", "int64"),
    "uint16": ("int32", "int64"),
    "int32": ("int64",),
    "uint32": ("int64",),
    "float": ("double",),
    "halffloat": ("float", "double"),
    "large_string": ("string",),
    "large_binary": ("binary",),
    "uint64": ("decimal128(20, 0)",),
}


@dataclass
class ReadHistory:
    """Reads pieces, one JSON line each; the function given to `mapInArrow`. Gives `schema` and where each row stands.

    Rows of `until` (microseconds since 1970) and later are not history any more and are left out; rows without a time
    are not, since somebody has to see them.
    """

    schema: pa.Schema
    time: str | None
    unit: str = "ms"
    until: int | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of all pieces of a task."""
        for batch in batches:
            for line in batch.column(0).to_pylist():
                yield from self._piece(json.loads(line))

    def output(self) -> pa.Schema:
        """The columns it gives."""
        return pa.schema([*self.schema, (FILE, pa.string()), (ROW, pa.int64())])

    def _piece(self, piece: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        row = piece["row"]
        with opened(piece["path"]) as parquet:
            names = [name for name in self.schema.names if name in parquet.schema_arrow.names]
            # a file without any of the columns still has rows
            asked = names or parquet.schema_arrow.names[:1]
            for rows in parquet.iter_batches(_BATCH_ROWS, row_groups=[piece["group"]], columns=asked):
                yield self._conformed(rows, piece["folders"], piece["path"], row)
                row += rows.num_rows

    def _conformed(self, rows: pa.RecordBatch, folders: Mapping[str, str], path: str, row: int) -> pa.RecordBatch:
        length = rows.num_rows
        columns = [self._column(field, rows, folders) for field in self.schema]
        columns += [pa.repeat(pa.scalar(path), length), pa.array(range(row, row + length), pa.int64())]
        found = pa.RecordBatch.from_arrays(columns, schema=self.output())
        if self.until is None or self.time is None:
            return found
        times = found.column(self.time).cast(pa.int64())
        return found.filter(pc.fill_null(pc.less(times, self.until), True))

    def _column(self, field: pa.Field, rows: pa.RecordBatch, folders: Mapping[str, str]) -> pa.Array:
        if field.name in rows.schema.names:
            values = rows.column(field.name)
            return as_times(values, self.unit) if field.name == self.time else conform(values, field.type)
        value = pa.scalar(folders.get(field.name), pa.string())
        return pa.repeat(value, rows.num_rows).cast(field.type)


def opened(path: str) -> pq.ParquetFile:
    """A Parquet file, here or in an object store."""
    if is_local(path):
        return pq.ParquetFile(path.removeprefix("file://"))
    system, name = FileSystem.from_uri(path)
    return pq.ParquetFile(name, filesystem=system)


def as_times(given: pa.Array, unit: str) -> pa.Array:
    """Timestamps from timestamps, dates, numbers since 1970 or ISO texts; no zone means UTC."""
    kind = given.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        utc = given.cast(pa.timestamp(kind.unit if pa.types.is_timestamp(kind) else "us", tz="UTC"))
        return utc.cast(TIMESTAMP, safe=False)  # finer than a microsecond is cut off
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        numbers = given.cast(pa.int64(), safe=False)
        micros = pc.divide(numbers, 1000) if unit == "ns" else pc.multiply(numbers, _UNITS[unit])
        return micros.cast(TIMESTAMP)
    texts = given.cast(pa.string())
    zoned = pc.match_substring_regex(texts, r"(Z|[+-]\d\d:?\d\d)$")
    return pc.if_else(zoned, texts, pc.binary_join_element_wise(texts, "Z", "")).cast(TIMESTAMP)


def conform(given: pa.Array, target: pa.DataType) -> pa.Array:
    """The same values as the type of the stream: maps from lists of key and value, structs by the names of fields."""
    if given.type == target:
        return given
    if pa.types.is_dictionary(given.type):
        return conform(given.dictionary_decode(), target)
    if pa.types.is_map(target):
        return _as_map(given, target)
    if pa.types.is_struct(target):
        names = [field.name for field in given.type]
        parts = [
            conform(pc.struct_field(given, [field.name]), field.type)
            if field.name in names
            else pa.nulls(len(given), field.type)
            for field in target
        ]
        return pa.StructArray.from_arrays(parts, fields=list(target), mask=pc.is_null(given))
    if pa.types.is_list(target):
        items = conform(given.flatten(), target.value_type)
        return pa.ListArray.from_arrays(_offsets(given), items, type=target)
    if pa.types.is_timestamp(target):
        return given.cast(pa.timestamp(given.type.unit, tz=target.tz)).cast(target, safe=False)
    return given.cast(target)


def _as_map(given: pa.Array, target: pa.DataType) -> pa.Array:
    """A map from a map or from a list of structs of a key and a value: the two layouts that writers have."""
    if pa.types.is_map(given.type):
        given = given.cast(pa.list_(pa.struct([("key", given.type.key_type), ("value", given.type.item_type)])))
    entries = given.flatten()
    keys = conform(pc.struct_field(entries, ["key"]), target.key_type)
    values = conform(pc.struct_field(entries, ["value"]), target.item_type)
    if keys.null_count:
        raise ValueError("a map of the history has a null key")
    return pa.MapArray.from_arrays(_offsets(given), keys, values).cast(target)


def _offsets(given: pa.Array) -> pa.Array:
    """Where each list begins and ends in its flattened items; null where the list is null."""
    lengths = pc.fill_null(pc.list_value_length(given), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int32()))
    starts = pc.subtract(ends, lengths.cast(pa.int32()))
    whole = pa.concat_arrays([starts, ends[-1:] if len(ends) else pa.array([0], pa.int32())])
    mask = pa.concat_arrays([pc.is_null(given), pa.array([False])])
    return pc.if_else(mask, pa.scalar(None, pa.int32()), whole)


def misfits(held: pa.Schema, wanted: pa.Schema, time: str | None, folders: Mapping[str, str]) -> str | None:
    """Why a file cannot be read as the stream, None when it can."""
    if time is not None and time not in held.names:
        return f"it has no column '{time}', which is the event time"
    for field in wanted:
        if field.name in held.names:
            kind = held.field(field.name).type
            fits = _is_time(kind) if field.name == time else can_conform(kind, field.type)
            if not fits:
                return f"'{field.name}' is {kind}, and {field.type} in the stream"
        elif field.name in folders and not pa.types.is_string(field.type) and not pa.types.is_integer(field.type):
            return f"'{field.name}' is the name of a folder, and {field.type} in the stream"
    return None


def _is_time(kind: pa.DataType) -> bool:
    tests = (pa.types.is_timestamp, pa.types.is_date, pa.types.is_integer, pa.types.is_floating, pa.types.is_string)
    return any(test(kind) for test in tests)


def can_conform(held: pa.DataType, target: pa.DataType) -> bool:
    """Whether values of one type are values of the other without loss."""
    if held == target or str(target) in _WIDER.get(str(held), ()):
        return True
    if pa.types.is_dictionary(held):
        return can_conform(held.value_type, target)
    if pa.types.is_map(target):
        return _entries_fit(held, target)
    if pa.types.is_struct(target):
        return pa.types.is_struct(held) and all(
            can_conform(held.field(part.name).type, part.type)
            for part in target
            if held.get_field_index(part.name) >= 0
        )
    if pa.types.is_list(target):
        is_list = pa.types.is_list(held) or pa.types.is_large_list(held)
        return is_list and can_conform(held.value_type, target.value_type)
    return bool(pa.types.is_timestamp(target) and pa.types.is_timestamp(held))


def _entries_fit(held: pa.DataType, target: pa.DataType) -> bool:
    if pa.types.is_map(held):
        return can_conform(held.key_type, target.key_type) and can_conform(held.item_type, target.item_type)
    if not (pa.types.is_list(held) or pa.types.is_large_list(held)) or not pa.types.is_struct(held.value_type):
        return False
    entry = held.value_type
    if {part.name for part in entry} != {"key", "value"}:
        return False
    key, value = entry.field("key").type, entry.field("value").type
    return can_conform(key, target.key_type) and can_conform(value, target.item_type)
