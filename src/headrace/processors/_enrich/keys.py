"""The distinct keys of a batch: each combination of values of the columns that a request contains."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.encoding.json_values import as_text
from headrace.processors._enrich.templates import JsonText

Values = tuple[Any, ...]


@dataclass(frozen=True)
class Keys:
    """The distinct keys of a batch."""

    values: list[Values]
    places: pa.Array
    """The key of each row; null where one of its columns is null."""


def keys_of(batch: pa.RecordBatch, columns: Sequence[str]) -> Keys:
    if not columns:
        return Keys([()], pa.array([0] * batch.num_rows, pa.int32()))
    coded = [_coded(column_of(batch, name)) for name in columns]
    if len(coded) == 1:
        values, places = coded[0]
        return Keys([(value,) for value in values], places)
    seen: dict[tuple[int, ...], int] = {}
    found = []
    for combination in zip(*(places.to_pylist() for _, places in coded), strict=True):
        found.append(None if None in combination else seen.setdefault(combination, len(seen)))
    combined = [tuple(one[0][code] for one, code in zip(coded, codes, strict=True)) for codes in seen]
    return Keys(combined, pa.array(found, pa.int32()))


def column_of(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A column, or a field of a struct by its dotted name."""
    if name in batch.schema.names:
        return batch.column(name)
    head, *fields = name.split(".")
    return pc.struct_field(batch.column(head), fields)


def type_of(schema: pa.Schema, name: str) -> pa.DataType | None:
    """The type of a column or of a field of a struct; None if it does not exist."""
    if name in schema.names:
        return schema.field(name).type
    head, *fields = name.split(".")
    if head not in schema.names:
        return None
    kind = schema.field(head).type
    for field in fields:
        if pa.types.is_null(kind):
            return kind
        if not pa.types.is_struct(kind) or kind.get_field_index(field) < 0:
            return None
        kind = kind.field(field).type
    return kind


def _coded(column: pa.Array) -> tuple[list[Any], pa.Array]:
    """The distinct values of a column, and the place of each row's value among them."""
    nested = pa.types.is_nested(column.type)
    if nested:
        column = pa.array([None if one is None else _json(one) for one in column.to_pylist()], pa.string())
    if pa.types.is_null(column.type):
        return [], pa.nulls(len(column), pa.int32())
    encoded = column.dictionary_encode()
    values = _python(encoded.dictionary)
    return [JsonText(value) for value in values] if nested else values, encoded.indices


def _json(value: Any) -> str:
    return json.dumps(value, default=as_text, ensure_ascii=False)


def _python(values: pa.Array) -> list[Any]:
    try:
        return list(values.to_pylist())
    except (OverflowError, ValueError):
        # Python has no times before year 1 and after 9999
        return list(values.cast(pa.string()).to_pylist())
