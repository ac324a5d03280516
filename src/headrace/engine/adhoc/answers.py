"""Results of ad-hoc SQL as JSON values, without rounding, truncation or replacement."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

Convert = Callable[[Any], Any]

_JSON = msgspec.json.Encoder(decimal_format="number")
_ZERO = Decimal(0)


def to_document(table: pa.Table) -> dict[str, Any]:
    """`{"columns": […], "rows": [[…]]}`; decimals and times are Python objects."""
    columns = [[convert(value) for value in column.to_pylist()] for column, convert in _converted(table)]
    rows = [list(row) for row in zip(*columns, strict=True)] if columns else []
    return {"columns": table.column_names, "rows": rows}


def cell_text(value: Any) -> str:
    """A value as text for CSV and tables: a string unchanged, null as an empty string, anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else _text(value)


def _converted(table: pa.Table) -> list[tuple[pa.ChunkedArray, Convert]]:
    return [(column, _convert(column.type)) for column in table.columns]


def _convert(kind: pa.DataType) -> Convert:
    convert = _convert_non_null(kind)
    return lambda value: None if value is None else convert(value)


def _convert_non_null(kind: pa.DataType) -> Convert:
    types = pa.types
    if types.is_float32(kind):
        return lambda value: _number(float(str(np.float32(value))))  # 0.1, not the double next to it
    if types.is_floating(kind):
        return _number
    if types.is_decimal(kind):
        return lambda value: value or _ZERO  # not 0E-9
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _bytes
    if types.is_timestamp(kind):
        return lambda value: value.isoformat()
    if types.is_duration(kind):
        return _duration
    if types.is_list(kind) or types.is_large_list(kind):
        item = _convert(kind.value_type)
        return lambda value: [item(element) for element in value]
    if types.is_struct(kind):
        fields = {field.name: _convert(field.type) for field in kind}
        return lambda value: {name: convert(value[name]) for name, convert in fields.items()}
    if types.is_map(kind):
        key, value_of = _convert(kind.key_type), _convert(kind.item_type)
        return lambda pairs: {cell_text(key(name)): value_of(value) for name, value in pairs}
    return lambda value: value


def _number(value: float) -> float | str:
    """NaN and the infinities as strings, as in endpoints: JSON has no such numbers."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _bytes(value: bytes) -> str:
    """The text if the bytes are UTF-8, otherwise base64."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return b64encode(value).decode()


def _duration(value: timedelta) -> str:
    return str(value)


def _text(value: Any) -> str:
    encoded = _JSON.encode(value)
    # a date or a time is a string in JSON
    return str(msgspec.json.decode(encoded)) if encoded[:1] == b'"' else msgspec.json.format(encoded, indent=0).decode()
