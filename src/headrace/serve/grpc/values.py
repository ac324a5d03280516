"""Converts between the self-describing values of the common service and the JSON of rows."""

from __future__ import annotations

import math
from base64 import b64decode
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

from headrace.core.endpoints import Endpoint
from headrace.core.errors import RequestError
from headrace.serve.grpc import shapes
from headrace.store.rows.row_json import typed
from headrace.store.rows.values import NAN, kind_of

Write = Callable[[Any], dict[str, Any]]
_NULL: dict[str, Any] = {"null_value": 0}
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class GenericRows:
    """Rows of one endpoint in the form of the common service."""

    def __init__(self, columns: pa.Schema) -> None:
        self._writers = {field.name: writer(field.type) for field in columns}

    def row(self, json: bytes) -> dict[str, Any]:
        """A row as arguments of a map of values."""
        writers = self._writers
        return {name: _NULL if value is None else writers[name](value) for name, value in _decode(json).items()}


def writer(kind: pa.DataType) -> Write:
    """Converts a JSON value of a row, other than null, to the arguments of a Value."""
    types = pa.types
    if types.is_map(kind):
        item = _or_null(writer(kind.item_type))
        return lambda value: {"map_value": {"entries": {name: item(inner) for name, inner in value.items()}}}
    if types.is_list(kind) or types.is_large_list(kind):
        item = _or_null(writer(kind.value_type))
        return lambda value: {"list_value": {"items": [item(inner) for inner in value]}}
    if types.is_struct(kind) and not shapes.is_point(kind):
        parts = {part.name: _or_null(writer(part.type)) for part in kind}
        return lambda value: {"struct_value": {"fields": {name: parts[name](inner) for name, inner in value.items()}}}
    return _simple(kind)


def _simple(kind: pa.DataType) -> Write:
    types = pa.types
    if types.is_boolean(kind):
        return lambda value: {"bool_value": value}
    if types.is_integer(kind):
        return (lambda value: {"int_value": value}) if kind != pa.uint64() else (lambda value: {"uint_value": value})
    if types.is_floating(kind):
        return lambda value: {"double_value": float(value)}
    if types.is_binary(kind) or types.is_large_binary(kind):
        return lambda value: {"bytes_value": b64decode(value)}
    if types.is_decimal(kind):
        return lambda value: {"decimal_value": {"text": value}}
    if types.is_date32(kind):
        return lambda value: {"date_value": shapes.day(value)}
    if types.is_timestamp(kind):
        if kind.tz is None:
            return lambda value: {"local_timestamp_value": {"text": value}}
        return lambda value: {"timestamp_value": shapes.timestamp(value)}
    if shapes.is_point(kind):
        return lambda value: {"point_value": shapes.point(value)}
    return lambda value: {"string_value": value}


def _or_null(write: Write) -> Write:
    return lambda value: _NULL if value is None else write(value)


_READERS: dict[str, Callable[[Any], Any]] = {
    "null_value": lambda _value: None,
    "double_value": shapes.json_number,
    "bytes_value": shapes.binary,
    "decimal_value": lambda value: value.text,
    "timestamp_value": shapes.json_timestamp,
    "local_timestamp_value": lambda value: value.text,
    "date_value": shapes.json_day,
    "point_value": shapes.json_point,
    "list_value": lambda value: [read(inner) for inner in value.items],
    "struct_value": lambda value: {name: read(inner) for name, inner in value.fields.items()},
    "map_value": lambda value: {name: read(inner) for name, inner in value.entries.items()},
}


def read(value: Any) -> Any:
    """A Value as a JSON value; ValueError for a value that no row can have."""
    which = value.WhichOneof("value")
    if which is None:
        return None
    content = getattr(value, which)
    convert = _READERS.get(which)
    return content if convert is None else convert(content)


def key_of(endpoint: Endpoint, values: list[Any]) -> list[Any]:
    """The typed values of a key from JSON values, one for each column."""
    if len(values) != len(endpoint.key):
        raise RequestError(
            "bad-key",
            f"the key of '{endpoint.name}' has {len(endpoint.key)} parts, not {len(values)}",
            hint=f"pass one value for each of: {', '.join(endpoint.key)}",
        )
    return [_typed(name, endpoint.types[name], value) for name, value in zip(endpoint.key, values, strict=True)]


def _typed(name: str, column_type: pa.DataType, value: Any) -> Any:
    kind = kind_of(column_type)
    if value is None:
        raise RequestError("bad-key", f"the key has no '{name}'", hint=f"it must be {kind.expected}")
    try:
        parsed = kind.parse(value)
    except ValueError:
        message = f"'{str(value)[:40]}' is not a value of '{name}'"
        raise RequestError("bad-key", message, hint=f"it must be {kind.expected}") from None
    if pa.types.is_nested(column_type):
        return typed(column_type)(value)
    return math.nan if parsed is NAN else parsed
