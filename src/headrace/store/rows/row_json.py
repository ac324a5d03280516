"""Rows as the JSON that is served, and JSON values back as typed values.

A whole column is encoded at once, so a row costs little more than joining its pieces.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_NULL = b"null"
# up to this scale Arrow writes decimals without an exponent
_PLAIN_SCALE = 6
_SPECIAL = {math.inf: "Infinity", -math.inf: "-Infinity"}
Convert = Callable[[Any], Any]


class RowJson:
    """Writes rows with a fixed list of columns."""

    def __init__(self, columns: pa.Schema) -> None:
        self._names = columns.names
        self._before = [b"{,"[bool(number) :][:1] + _encode(name) + b":" for number, name in enumerate(columns.names)]

    def rows(self, batch: pa.RecordBatch) -> list[bytes]:
        """The JSON of each row: every column, in the order of the endpoint."""
        count = batch.num_rows
        pieces: list[Iterable[bytes]] = []
        for name, before in zip(self._names, self._before, strict=True):
            pieces += [[before] * count, column_json(batch.column(name))]
        pieces.append([b"}"] * count)
        return [b"".join(row) for row in zip(*pieces, strict=True)]


def column_json(values: pa.Array) -> list[bytes]:
    kind, types = values.type, pa.types
    if types.is_integer(kind) or types.is_boolean(kind):
        return _numbers(values.to_pylist())
    if types.is_floating(kind):
        return _floats(values)
    if types.is_timestamp(kind):
        return _instants(values)
    if types.is_string(kind) or types.is_large_string(kind):
        return [_encode(value) for value in values.to_pylist()]
    if types.is_decimal(kind) and 0 <= kind.scale <= _PLAIN_SCALE:
        return [_NULL if value is None else b'"%b"' % value for value in _as_bytes(values)]
    return _each(values)


def _each(values: pa.Array) -> list[bytes]:
    plain = _plain(values.type)
    return [_NULL if value is None else _encode(plain(value)) for value in values.to_pylist()]


def _as_bytes(values: pa.Array) -> list[bytes | None]:
    encoded: list[bytes | None] = values.cast(pa.string()).cast(pa.binary()).to_pylist()
    return encoded


def _numbers(values: list[Any]) -> list[bytes]:
    return _encode(values)[1:-1].split(b",") if values else []


def _floats(values: pa.Array) -> list[bytes]:
    if pa.types.is_float64(values.type) and pc.all(pc.is_finite(values), min_count=0).as_py():
        return _numbers(values.to_pylist())
    return _each(values)


def _instants(values: pa.Array) -> list[bytes]:
    numbers = values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64()).fill_null(0)
    texts = np.datetime_as_string(numbers.to_numpy(zero_copy_only=False).view("M8[us]"), unit="us").tolist()
    end = "" if values.type.tz is None else "Z"
    encoded = [f'"{_short(text)}{end}"'.encode() for text in texts]
    if values.null_count:
        return [text if valid else _NULL for text, valid in zip(encoded, values.is_valid().to_pylist(), strict=True)]
    return encoded


def _short(text: str) -> str:
    """A time without trailing zeros: no fraction, or 3 or 6 digits of it."""
    if text.endswith("000"):
        return text[:-7] if text.endswith(".000000") else text[:-3]
    return text


def _plain(kind: pa.DataType) -> Convert:
    """Converts a value to what the encoder writes in the served form."""
    types = pa.types
    if types.is_float64(kind):
        return _plain_double
    if types.is_floating(kind):
        return _plain_single
    if types.is_decimal(kind):
        return lambda value: format(value, "f")
    if types.is_timestamp(kind):
        end = "" if kind.tz is None else "Z"
        return lambda value: _short(value.replace(tzinfo=None).isoformat(timespec="microseconds")) + end
    if types.is_date(kind):
        return date.isoformat
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return lambda value: b64encode(value).decode()
    return _plain_nested(kind)


def _plain_double(value: float) -> float | str:
    return value if math.isfinite(value) else _SPECIAL.get(value, "NaN")


def _plain_single(value: float) -> float | str:
    """The shortest number with this value: 0.1, not the nearest double."""
    return float(str(np.float32(value))) if math.isfinite(value) else _SPECIAL.get(value, "NaN")


def _plain_nested(kind: pa.DataType) -> Convert:
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        item = _or_null(_plain(kind.value_type))
        return lambda value: [item(element) for element in value]
    if types.is_struct(kind):
        fields = {field.name: _or_null(_plain(field.type)) for field in kind}
        return lambda value: {name: plain(value[name]) for name, plain in fields.items()}
    if types.is_map(kind):
        key, item = _plain(kind.key_type), _or_null(_plain(kind.item_type))
        return lambda value: {_as_text(key(name)): item(element) for name, element in value}
    return lambda value: value


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else _encode(value).decode()


def _or_null(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def typed(kind: pa.DataType) -> Convert:
    """Converts a decoded JSON value of such a column to its typed value, as Arrow returns it; a map becomes a dict."""
    return _or_null(_typed(kind))


def _typed(kind: pa.DataType) -> Convert:
    types = pa.types
    if types.is_float64(kind):
        return float
    if types.is_floating(kind):
        return lambda value: float(np.float32(value))
    if types.is_decimal(kind):
        return Decimal
    if types.is_timestamp(kind):
        return datetime.fromisoformat
    if types.is_date(kind):
        return date.fromisoformat
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return b64decode
    return _typed_nested(kind)


def _typed_nested(kind: pa.DataType) -> Convert:
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        item = typed(kind.value_type)
        return lambda value: [item(element) for element in value]
    if types.is_struct(kind):
        fields = {field.name: typed(field.type) for field in kind}
        return lambda value: {name: convert(value.get(name)) for name, convert in fields.items()}
    if types.is_map(kind):
        key, item = _typed_name(kind.key_type), typed(kind.item_type)
        return lambda value: {key(name): item(element) for name, element in value.items()}
    return lambda value: value


def _typed_name(kind: pa.DataType) -> Convert:
    """As `typed`, for a key of a map, whose JSON is always a string."""
    types = pa.types
    convert = _typed(kind)
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_nested(kind):
        return lambda name: convert(_decode(name))
    return convert


class Picker:
    """Reads typed values of some columns from a row's JSON and skips the others."""

    def __init__(self, columns: pa.Schema, names: Iterable[str]) -> None:
        self.names = list(names)
        self._types = [columns.field(name).type for name in self.names]
        self._convert = [typed(kind) for kind in self._types]
        fields = [(f"f{number}", Any) for number in range(len(self.names))]
        shape = msgspec.defstruct("Picked", fields, rename={f"f{at}": name for at, name in enumerate(self.names)})
        self._decode = msgspec.json.Decoder(shape).decode

    def __call__(self, json: bytes) -> list[Any]:
        """The values of a row, in the order of the column names."""
        values = msgspec.structs.astuple(self._decode(json))
        return [convert(value) for convert, value in zip(self._convert, values, strict=True)]

    def columns(self, rows: Iterable[bytes]) -> list[pa.Array]:
        """The values of many rows, column by column."""
        decode, astuple = self._decode, msgspec.structs.astuple
        columns = list(zip(*(astuple(decode(row)) for row in rows), strict=True)) or [()] * len(self.names)
        return [_array(kind, values) for kind, values in zip(self._types, columns, strict=True)]


def _array(kind: pa.DataType, values: Sequence[Any]) -> pa.Array:
    types = pa.types
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_string(kind):
        return pa.array(values, kind)
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_decimal(kind):
        return pa.array(values, pa.string()).cast(kind)
    convert = typed(kind)
    return pa.array([_pairs(kind, convert(value)) for value in values], kind)


def _pairs(kind: pa.DataType, value: Any) -> Any:
    """The value in the form Arrow expects: maps, also nested ones, as lists of pairs."""
    types = pa.types
    if value is None or not types.is_nested(kind):
        return value
    if types.is_map(kind):
        return [(key, _pairs(kind.item_type, item)) for key, item in value.items()]
    if types.is_struct(kind):
        return {field.name: _pairs(field.type, value[field.name]) for field in kind}
    return [_pairs(kind.value_type, item) for item in value]
