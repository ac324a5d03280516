"""Values as bytes that sort as the values do: the keys of rows and index entries.

One codec per type. Encodings are self-delimiting, so the encodings of several columns can be joined and still sort
column by column. A null sorts before all values, a NaN after all numbers, text by code point, as in Spark.
"""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa

_NULL, _VALUE = b"\x00", b"\x01"
_SIGN_64 = 1 << 63
_SIGN_128 = 1 << 127
_ALL_64 = (1 << 64) - 1
# ends a text; a zero byte within the text is followed by 0xFF instead, so the longer text sorts later
_END, _ZERO = b"\x00\x01", b"\x00\xff"
_MORE, _NO_MORE = b"\x02", b"\x00"
_EPOCH_DAY = date(1970, 1, 1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_EXACT = Context(prec=80)


class KeyCodec(ABC):
    """Encodes values of one type, nulls included."""

    def encode(self, value: Any) -> bytes:
        return _NULL if value is None else _VALUE + self._encode(value)

    def decode(self, data: bytes, at: int = 0) -> tuple[Any, int]:
        """The value that begins at `at`, and where the next value begins."""
        return (None, at + 1) if data[at] == 0 else self._decode(data, at + 1)

    def column(self, values: pa.Array) -> list[bytes]:
        return [self.encode(value) for value in values.to_pylist()]

    @abstractmethod
    def _encode(self, value: Any) -> bytes: ...

    @abstractmethod
    def _decode(self, data: bytes, at: int) -> tuple[Any, int]: ...


class _BooleanKeys(KeyCodec):
    def _encode(self, value: bool) -> bytes:
        return b"\x01" if value else b"\x00"

    def _decode(self, data: bytes, at: int) -> tuple[bool, int]:
        return data[at] == 1, at + 1


class _IntegerKeys(KeyCodec):
    """Eight bytes with the sign bit inverted, so that negative numbers sort first."""

    def _encode(self, value: int) -> bytes:
        return (value + _SIGN_64).to_bytes(8, "big")

    def _decode(self, data: bytes, at: int) -> tuple[int, int]:
        return int.from_bytes(data[at : at + 8], "big") - _SIGN_64, at + 8

    def column(self, values: pa.Array) -> list[bytes]:
        if values.null_count:
            return super().column(values)
        numbers = values.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return _eight_bytes(numbers.view("u8") ^ _SIGN_64)


class _Days(_IntegerKeys):
    def _encode(self, value: Any) -> bytes:
        return super()._encode((value - _EPOCH_DAY).days)

    def _decode(self, data: bytes, at: int) -> tuple[Any, int]:
        days, end = super()._decode(data, at)
        return _EPOCH_DAY + timedelta(days=days), end

    def column(self, values: pa.Array) -> list[bytes]:
        return super().column(values) if values.null_count else _IntegerKeys().column(values.cast(pa.int32()))


class _InstantKeys(_IntegerKeys):
    def __init__(self, zoned: bool) -> None:
        self._zero = _EPOCH if zoned else _EPOCH.replace(tzinfo=None)

    def _encode(self, value: Any) -> bytes:
        return super()._encode((value - self._zero) // _MICROSECOND)

    def _decode(self, data: bytes, at: int) -> tuple[Any, int]:
        microseconds, end = super()._decode(data, at)
        return self._zero + timedelta(microseconds=microseconds), end

    def column(self, values: pa.Array) -> list[bytes]:
        return super().column(values) if values.null_count else _IntegerKeys().column(values.cast(pa.int64()))


class _FloatKeys(KeyCodec):
    """In the order of IEEE 754: negative numbers with all bits inverted, others with the sign bit inverted."""

    def _encode(self, value: float) -> bytes:
        # one form of zero and of NaN, so that equal numbers have equal keys
        (bits,) = struct.unpack(">Q", struct.pack(">d", math.nan if math.isnan(value) else value + 0.0))
        return int(bits ^ (_ALL_64 if bits & _SIGN_64 else _SIGN_64)).to_bytes(8, "big")

    def _decode(self, data: bytes, at: int) -> tuple[float, int]:
        bits = int.from_bytes(data[at : at + 8], "big")
        bits ^= _SIGN_64 if bits & _SIGN_64 else _ALL_64
        (value,) = struct.unpack(">d", bits.to_bytes(8, "big"))
        return value, at + 8

    def column(self, values: pa.Array) -> list[bytes]:
        if values.null_count:
            return super().column(values)
        numbers = values.cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0
        numbers[np.isnan(numbers)] = math.nan
        bits = numbers.view("u8")
        return _eight_bytes(np.where(bits >> 63, ~bits, bits ^ _SIGN_64))


class _DecimalKeys(KeyCodec):
    """The digits as a whole number of 16 bytes: all values of a column have the same scale."""

    def __init__(self, scale: int) -> None:
        self._scale = scale

    def _encode(self, value: Decimal) -> bytes:
        return (int(value.scaleb(self._scale, _EXACT)) + _SIGN_128).to_bytes(16, "big")

    def _decode(self, data: bytes, at: int) -> tuple[Decimal, int]:
        digits = int.from_bytes(data[at : at + 16], "big") - _SIGN_128
        return Decimal(digits).scaleb(-self._scale, _EXACT), at + 16


class _ByteKeys(KeyCodec):
    def _encode(self, value: bytes) -> bytes:
        return value.replace(b"\x00", _ZERO) + _END

    def _decode(self, data: bytes, at: int) -> tuple[Any, int]:
        end = data.index(_END, at)
        return data[at:end].replace(_ZERO, b"\x00"), end + len(_END)

    def column(self, values: pa.Array) -> list[bytes]:
        return [
            _NULL if value is None else b"\x01%b\x00\x01" % value.replace(b"\x00", _ZERO)
            for value in values.cast(pa.large_binary()).to_pylist()
        ]


class _TextKeys(_ByteKeys):
    def _encode(self, value: Any) -> bytes:
        return super()._encode(value.encode())

    def _decode(self, data: bytes, at: int) -> tuple[Any, int]:
        encoded, end = super()._decode(data, at)
        return encoded.decode(), end


class _Lists(KeyCodec):
    def __init__(self, item: KeyCodec) -> None:
        self._item = item

    def _encode(self, value: Sequence[Any]) -> bytes:
        return b"".join(_MORE + self._item.encode(item) for item in value) + _NO_MORE

    def _decode(self, data: bytes, at: int) -> tuple[Any, int]:
        items = []
        while data[at : at + 1] == _MORE:
            item, at = self._item.decode(data, at + 1)
            items.append(item)
        return items, at + 1


class _StructKeys(KeyCodec):
    def __init__(self, fields: dict[str, KeyCodec]) -> None:
        self._fields = fields

    def _encode(self, value: dict[str, Any]) -> bytes:
        return b"".join(codec.encode(value.get(name)) for name, codec in self._fields.items())

    def _decode(self, data: bytes, at: int) -> tuple[Any, int]:
        fields = {}
        for name, codec in self._fields.items():
            fields[name], at = codec.decode(data, at)
        return fields, at


class _MapKeys(KeyCodec):
    """Pairs in the order of their keys: equal maps have equal bytes, in whatever order they were written."""

    def __init__(self, key: KeyCodec, item: KeyCodec) -> None:
        self._key, self._item = key, item

    def _encode(self, value: dict[Any, Any] | Sequence[tuple[Any, Any]]) -> bytes:
        pairs = value.items() if isinstance(value, dict) else value
        encoded = sorted(self._key.encode(key) + self._item.encode(item) for key, item in pairs)
        return b"".join(_MORE + pair for pair in encoded) + _NO_MORE

    def _decode(self, data: bytes, at: int) -> tuple[Any, int]:
        items = {}
        while data[at : at + 1] == _MORE:
            key, at = self._key.decode(data, at + 1)
            items[key], at = self._item.decode(data, at)
        return items, at + 1


def _eight_bytes(numbers: np.ndarray[Any, np.dtype[np.uint64]]) -> list[bytes]:
    """The keys of values without nulls, from the number that encodes each value."""
    keys = np.empty(len(numbers), [("value", "u1"), ("bytes", ">u8")])
    keys["value"], keys["bytes"] = 1, numbers
    encoded: list[bytes] = keys.view("V9").tolist()
    return encoded


def codec(kind: pa.DataType) -> KeyCodec:
    """The codec of a type; TypeError when the type has none."""
    types = pa.types
    if types.is_boolean(kind):
        return _BooleanKeys()
    if types.is_integer(kind) and kind != pa.uint64():
        return _IntegerKeys()
    if types.is_floating(kind):
        return _FloatKeys()
    if types.is_decimal(kind):
        return _DecimalKeys(kind.scale)
    if types.is_string(kind) or types.is_large_string(kind):
        return _TextKeys()
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _ByteKeys()
    if types.is_date32(kind):
        return _Days()
    if types.is_timestamp(kind) and kind.unit == "us":
        return _InstantKeys(kind.tz is not None)
    return _nested(kind)


def _nested(kind: pa.DataType) -> KeyCodec:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _Lists(codec(kind.value_type))
    if pa.types.is_struct(kind):
        return _StructKeys({field.name: codec(field.type) for field in kind})
    if pa.types.is_map(kind):
        return _MapKeys(codec(kind.key_type), codec(kind.item_type))
    raise TypeError(f"values of type {kind} have no order")
