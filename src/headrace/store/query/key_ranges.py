"""Ranges of keys: where in an index, or among the rows themselves, what meets a condition must stand."""

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

_ROW_KEPT, _VALUE_KEPT = ROW_KEY - 32, VALUE_KEY - 16
_FIXED_WIDTH = 17
"""Bytes of the longest encoding of a value that has not a length of its own: a decimal."""


@dataclass(frozen=True)
class KeyRange:
    """Keys from `low` on, up to `high`, which is not in it; None: up to the end."""

    low: bytes
    high: bytes | None

    @staticmethod
    def of(prefix: bytes) -> KeyRange:
        """All keys that begin so."""
        return KeyRange(prefix, after(prefix))

    @property
    def empty(self) -> bool:
        """Whether no key can be in it."""
        return self.high is not None and self.low >= self.high


def after(prefix: bytes) -> bytes | None:
    """The least key that is greater than all that begin so; None: there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,)) if kept else None


@dataclass(frozen=True)
class Index:
    """Something sorted by columns: an index, or the rows by their key (number None)."""

    number: int | None
    database: bytes
    columns: tuple[str, ...]
    fields: tuple[Field, ...]
    longest: int
    kept: int
    """Keys of `longest` bytes are shortened: only so many are of the values, the others are a hash."""
    shortened: Callable[[bytes], bytes]
    can_be_shortened: bool
    then_key: tuple[str, ...]
    """Columns that entries with equal values are sorted by."""

    def point(self, values: bytes, columns: int) -> tuple[KeyRange, bool]:
        """Where entries with these values in their first columns stand, and whether others may stand there too."""
        if columns == len(self.fields):
            found = self.shortened(values)
            if self.number is None:
                return KeyRange(found, found + b"\x00"), False
            return KeyRange.of(found), False
        return KeyRange.of(values[: self.kept]), len(values) > self.kept

    def least(self, bound: bytes, inclusive: bool) -> tuple[bytes, bool]:
        """From where on entries are that are not below (or are above) a bound, and whether others may be there."""
        if len(bound) > self.kept:
            return bound[: self.kept], True
        return bound if inclusive else after(bound) or bound, False

    def most(self, bound: bytes, inclusive: bool) -> tuple[bytes | None, bool]:
        """Where entries end that are not above (or are below) a bound, and whether others may be before it."""
        if len(bound) > self.kept:
            return after(bound[: self.kept]), True
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
        kept=_ROW_KEPT if primary else _VALUE_KEPT,
        shortened=shortened_row_key if primary else shortened_value_key,
        can_be_shortened=not _fits(columns, schema, longest),
        then_key=key if not primary and _fits(key, schema, ROW_KEY) else (),
    )


def _fits(columns: tuple[str, ...], schema: pa.Schema, longest: int) -> bool:
    """Whether keys of these columns are always whole."""
    fixed = all(_is_fixed(schema.field(name).type) for name in columns)
    return fixed and len(columns) * _FIXED_WIDTH < longest


def _is_fixed(kind: pa.DataType) -> bool:
    types = pa.types
    texts = types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    return not texts and not types.is_nested(kind)


def indexes(endpoint: Endpoint) -> list[Index]:
    """All that an endpoint's rows can be found by, the rows themselves first."""
    own = [_index(number, columns, endpoint.key, endpoint.columns) for number, columns in enumerate(endpoint.indexes)]
    return [_index(None, endpoint.key, endpoint.key, endpoint.columns), *own]
