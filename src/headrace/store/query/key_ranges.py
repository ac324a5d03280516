"""Key ranges: where the entries that match a condition are, in an index or among the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from headrace.core.endpoints import Endpoint
from headrace.store.query.conditions import Field
from headrace.store.rows.layout import (
    ROW_KEY,
    ROWS,
    VALUE_KEY,
    index_name,
    shortened_row_key,
    shortened_value_key,
)
from headrace.store.rows.values import kind_of

_ROW_VALUE_BYTES, _ENTRY_VALUE_BYTES = ROW_KEY - 32, VALUE_KEY - 16
_FIXED_WIDTH = 17
"""Bytes of the longest encoding of fixed length: a decimal."""


@dataclass(frozen=True)
class KeyRange:
    """Keys from `low` up to, but excluding, `high`; None: up to the end."""

    low: bytes
    high: bytes | None

    @staticmethod
    def of(prefix: bytes) -> KeyRange:
        return KeyRange(prefix, after(prefix))

    @property
    def empty(self) -> bool:
        return self.high is not None and self.low >= self.high


def after(prefix: bytes) -> bytes | None:
    """The least key above all keys with this prefix; None: no such key exists."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None


@dataclass(frozen=True)
class Index:
    """Entries sorted by columns: an index, or the rows by their key (number None)."""

    number: int | None
    database: bytes
    columns: tuple[str, ...]
    fields: tuple[Field, ...]
    longest: int
    value_bytes: int
    """Keys of `longest` bytes are shortened: so many bytes encode values, the others are a hash."""
    shortened: Callable[[bytes], bytes]
    can_be_shortened: bool
    then_key: tuple[str, ...]
    """Columns by which entries with equal values are sorted."""

    def point(self, values: bytes, columns: int) -> tuple[KeyRange, bool]:
        """The range of entries with these values in their first columns, and whether it may include others."""
        if columns == len(self.fields):
            value_key = self.shortened(values)
            if self.number is None:
                return KeyRange(value_key, value_key + b"\x00"), False
            return KeyRange.of(value_key), False
        return KeyRange.of(values[: self.value_bytes]), len(values) > self.value_bytes

    def least(self, bound: bytes, inclusive: bool) -> tuple[bytes, bool]:
        """The start of the entries at or above (or above) a bound, and whether others may follow it."""
        if len(bound) > self.value_bytes:
            return bound[: self.value_bytes], True
        return bound if inclusive else after(bound) or bound, False

    def most(self, bound: bytes, inclusive: bool) -> tuple[bytes | None, bool]:
        """The end of the entries at or below (or below) a bound, and whether others may precede it."""
        if len(bound) > self.value_bytes:
            return after(bound[: self.value_bytes]), True
        return after(bound) if inclusive else bound, False


def _index(number: int | None, columns: tuple[str, ...], key: tuple[str, ...], schema: pa.Schema) -> Index:
    fields = tuple(Field((name,), kind_of(schema.field(name).type)) for name in columns)
    primary = number is None
    longest = ROW_KEY if primary else VALUE_KEY
    return Index(
        number=number,
        database=ROWS if number is None else index_name(number),
        columns=columns,
        fields=fields,
        longest=longest,
        value_bytes=_ROW_VALUE_BYTES if primary else _ENTRY_VALUE_BYTES,
        shortened=shortened_row_key if primary else shortened_value_key,
        can_be_shortened=not _fits(columns, schema, longest),
        then_key=key if not primary and _fits(key, schema, ROW_KEY) else (),
    )


def _fits(columns: tuple[str, ...], schema: pa.Schema, longest: int) -> bool:
    """Whether keys of these columns are never shortened."""
    fixed = all(_is_fixed(schema.field(name).type) for name in columns)
    return fixed and len(columns) * _FIXED_WIDTH < longest


def _is_fixed(kind: pa.DataType) -> bool:
    types = pa.types
    texts = types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    return not texts and not types.is_nested(kind)


def indexes(endpoint: Endpoint) -> list[Index]:
    """All indexes of an endpoint; the first one is the rows by their key."""
    own = [_index(number, columns, endpoint.key, endpoint.columns) for number, columns in enumerate(endpoint.indexes)]
    return [_index(None, endpoint.key, endpoint.key, endpoint.columns), *own]
