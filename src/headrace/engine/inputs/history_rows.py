"""Reads rows of history in a Python worker, with the columns of the stream. Files may have other compatible types."""

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
"""The position of a row of history; the columns exist until the event time filter."""
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
class HistoryReader:
    """Reads row groups, one JSON line each, as the function of `mapInArrow`. Returns `schema` and the row positions.

    Rows at or after `until` (microseconds since 1970) are not history and are dropped. Rows without an event time are
    kept, so that they become dead letters.
    """

    schema: pa.Schema
    time: str | None
    unit: str = "ms"
    until: int | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for line in batch.column(0).to_pylist():
                yield from self._row_group(json.loads(line))

    def output(self) -> pa.Schema:
        return pa.schema([*self.schema, (FILE, pa.string()), (ROW, pa.int64())])

    def _row_group(self, group: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        row = group["row"]
        with open_parquet(group["path"]) as parquet:
            names = [name for name in self.schema.names if name in parquet.schema_arrow.names]
            # a file without any of the columns still has rows
            columns = names or parquet.schema_arrow.names[:1]
            for rows in parquet.iter_batches(_BATCH_ROWS, row_groups=[group["group"]], columns=columns):
                yield self._conform(rows, group["folders"], group["path"], row)
                row += rows.num_rows

    def _conform(self, rows: pa.RecordBatch, folders: Mapping[str, str], path: str, row: int) -> pa.RecordBatch:
        length = rows.num_rows
        columns = [self._column(field, rows, folders) for field in self.schema]
        columns += [pa.repeat(pa.scalar(path), length), pa.array(range(row, row + length), pa.int64())]
        batch = pa.RecordBatch.from_arrays(columns, schema=self.output())
        if self.until is None or self.time is None:
            return batch
        times = batch.column(self.time).cast(pa.int64())
        return batch.filter(pc.fill_null(pc.less(times, self.until), True))

    def _column(self, field: pa.Field, rows: pa.RecordBatch, folders: Mapping[str, str]) -> pa.Array:
        if field.name in rows.schema.names:
            values = rows.column(field.name)
            return as_times(values, self.unit) if field.name == self.time else conform(values, field.type)
        value = pa.scalar(folders.get(field.name), pa.string())
        return pa.repeat(value, rows.num_rows).cast(field.type)


def open_parquet(path: str) -> pq.ParquetFile:
    """Open a Parquet file, local or in an object store."""
    if is_local(path):
        return pq.ParquetFile(path.removeprefix("file://"))
    system, name = FileSystem.from_uri(path)
    return pq.ParquetFile(name, filesystem=system)


def as_times(values: pa.Array, unit: str) -> pa.Array:
    """Timestamps from timestamps, dates, numbers since 1970 or ISO texts. A value without a time zone is in UTC."""
    kind = values.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        utc = values.cast(pa.timestamp(kind.unit if pa.types.is_timestamp(kind) else "us", tz="UTC"))
        return utc.cast(TIMESTAMP, safe=False)  # truncates to microseconds
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        numbers = values.cast(pa.int64(), safe=False)
        micros = pc.divide(numbers, 1000) if unit == "ns" else pc.multiply(numbers, _UNITS[unit])
        return micros.cast(TIMESTAMP)
    texts = values.cast(pa.string())
    zoned = pc.match_substring_regex(texts, r"(Z|[+-]\d\d:?\d\d)$")
    return pc.if_else(zoned, texts, pc.binary_join_element_wise(texts, "Z", "")).cast(TIMESTAMP)


def conform(values: pa.Array, target: pa.DataType) -> pa.Array:
    """The values in the type of the stream: maps from lists of key and value, structs by field name."""
    if values.type == target:
        return values
    if pa.types.is_dictionary(values.type):
        return conform(values.dictionary_decode(), target)
    if pa.types.is_map(target):
        return _as_map(values, target)
    if pa.types.is_struct(target):
        names = [field.name for field in values.type]
        parts = [
            conform(pc.struct_field(values, [field.name]), field.type)
            if field.name in names
            else pa.nulls(len(values), field.type)
            for field in target
        ]
        return pa.StructArray.from_arrays(parts, fields=list(target), mask=pc.is_null(values))
    if pa.types.is_list(target):
        items = conform(values.flatten(), target.value_type)
        return pa.ListArray.from_arrays(_offsets(values), items, type=target)
    if pa.types.is_timestamp(target):
        return values.cast(pa.timestamp(values.type.unit, tz=target.tz)).cast(target, safe=False)
    return values.cast(target)


def _as_map(values: pa.Array, target: pa.DataType) -> pa.Array:
    """A map from a map or from a list of structs with key and value, the two layouts that writers use."""
    if pa.types.is_map(values.type):
        values = values.cast(pa.list_(pa.struct([("key", values.type.key_type), ("value", values.type.item_type)])))
    entries = values.flatten()
    keys = conform(pc.struct_field(entries, ["key"]), target.key_type)
    items = conform(pc.struct_field(entries, ["value"]), target.item_type)
    if keys.null_count:
        raise ValueError("a map of the history has a null key")
    return pa.MapArray.from_arrays(_offsets(values), keys, items).cast(target)


def _offsets(lists: pa.Array) -> pa.Array:
    """The start of each list in the flattened items, and the end of the last; null where the list is null."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int32()))
    starts = pc.subtract(ends, lengths.cast(pa.int32()))
    bounds = pa.concat_arrays([starts, ends[-1:] if len(ends) else pa.array([0], pa.int32())])
    mask = pa.concat_arrays([pc.is_null(lists), pa.array([False])])
    return pc.if_else(mask, pa.scalar(None, pa.int32()), bounds)


def misfits(held: pa.Schema, expected: pa.Schema, time: str | None, folders: Mapping[str, str]) -> str | None:
    """Why a file cannot be read with the columns of the stream; None if it can."""
    if time is not None and time not in held.names:
        return f"it has no column '{time}', which is the event time"
    for field in expected:
        if field.name in held.names:
            kind = held.field(field.name).type
            fits = _is_time(kind) if field.name == time else can_conform(kind, field.type)
            if not fits:
                return f"'{field.name}' is {kind}, and {field.type} in the stream"
        elif field.name in folders and not pa.types.is_string(field.type) and not pa.types.is_integer(field.type):
            return f"'{field.name}' is a partition folder, and {field.type} in the stream"
    return None


def _is_time(kind: pa.DataType) -> bool:
    tests = (pa.types.is_timestamp, pa.types.is_date, pa.types.is_integer, pa.types.is_floating, pa.types.is_string)
    return any(test(kind) for test in tests)


def can_conform(held: pa.DataType, target: pa.DataType) -> bool:
    """Whether values of one type can be converted to the other without loss."""
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
