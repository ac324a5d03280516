"""Encodes rows of a table as bytes and back, for the copy of the table.

A whole column is encoded at once. Equal rows have equal bytes, so most comparisons need no decoding. A row that was
written before a column was added is shorter; its value there is null.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from itertools import zip_longest
from types import GenericAlias
from typing import Any, TypedDict, cast
from zlib import crc32

import msgspec
import pyarrow as pa

from headrace.core.endpoints import Endpoint
from headrace.core.errors import ProjectError
from headrace.core.schema import ddl_type
from headrace.core.tables import TableShape
from headrace.store.lmdb.errors import StoreDamagedError
from headrace.store.rows.layout import KeyMaker

_HEAD = struct.Struct(">II")
_NUMBER = struct.Struct(">I")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode
_typed_dict = cast(Any, TypedDict)
_BODY = _NUMBER.size
"""Where the part of a packed row begins that does not depend on its epoch."""


class CopyRows:
    """The rows of one table of a copy; `number` distinguishes the tables of a copy."""

    def __init__(self, name: str, number: int, shape: TableShape) -> None:
        self.name = name
        self.shape = shape
        self.prefix = _NUMBER.pack(number)
        self._maker = KeyMaker(Endpoint(name, shape.columns, shape.key))
        self._places = [shape.columns.get_field_index(name) for name in shape.key]
        self._columns = [_column(field.type) for field in shape.columns]

    def batch(self, rows: pa.Table) -> pa.RecordBatch:
        """Rows as one batch with the columns of the shape, whatever their order and types."""
        if not rows.num_rows:
            return _no_rows(self.shape.columns)
        whole = rows.select(self.shape.columns.names).cast(self.shape.columns)
        columns = [pa.concat_arrays(column.chunks) for column in whole.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.shape.columns)

    def typed(self, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        """A batch from rows of Python values."""
        schema = self.shape.columns
        if not rows:
            return _no_rows(schema)
        return pa.RecordBatch.from_arrays(
            [self._array(field, values) for field, values in zip(schema, zip(*rows, strict=True), strict=True)],
            schema=schema,
        )

    def keys(self, batch: pa.RecordBatch) -> list[bytes]:
        return self._keys([batch.column(place) for place in self._places])

    def keys_of(self, rows: Sequence[Sequence[Any]]) -> list[bytes]:
        """The keys of rows of Python values."""
        fields = [self.shape.columns.field(place) for place in self._places]
        picked = [[row[place] for row in rows] for place in self._places]
        return self._keys([self._array(field, values) for field, values in zip(fields, picked, strict=True)])

    def keys_from(self, keys: Sequence[Sequence[Any]]) -> list[bytes]:
        """The keys from values of the key columns."""
        fields = [self.shape.columns.field(place) for place in self._places]
        picked = [[key[at] for key in keys] for at in range(len(fields))]
        return self._keys([self._array(field, values) for field, values in zip(fields, picked, strict=True)])

    def packed(self, keys: Sequence[bytes], batch: pa.RecordBatch, epoch: int) -> list[bytes]:
        """The stored form of the rows of a batch."""
        columns = [column.out(batch.column(at)) for at, column in enumerate(self._columns)]
        bodies = map(_encode, zip(*columns, strict=True))
        head = _HEAD.pack
        return [head(epoch, crc32(body, crc32(key))) + body for key, body in zip(keys, bodies, strict=True)]

    def unpacked(self, items: Sequence[tuple[bytes, bytes]]) -> pa.RecordBatch:
        """Stored rows, with their keys, as a batch."""
        if not items:
            return _no_rows(self.shape.columns)
        rows = [_decode(self._checked(key, packed)) for key, packed in items]
        width = len(self._columns)
        columns: list[Sequence[Any]] = list(zip_longest(*rows))
        columns += [[None] * len(rows)] * (width - len(columns))
        arrays = [column.back(values) for column, values in zip(self._columns, columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.shape.columns)

    def value(self, key: bytes, packed: bytes, place: int) -> Any:
        row = _decode(self._checked(key, packed))
        return self._columns[place].back([row[place] if place < len(row) else None])[0].as_py()

    def _keys(self, columns: Sequence[pa.Array]) -> list[bytes]:
        prefix = self.prefix
        return [prefix + key for key in self._maker.row_keys(columns)]

    def _array(self, field: pa.Field, values: Sequence[Any]) -> pa.Array:
        try:
            return pa.array(values, field.type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise ProjectError(
                "table-value",
                f"column '{field.name}' of table '{self.name}' is {ddl_type(field.type)} and cannot hold the value of "
                f"its source: {str(error)[:200]}",
                hint="compare the table's columns (headrace tables show) with those of the source",
            ) from error

    def _checked(self, key: bytes, packed: bytes) -> bytes:
        body = packed[_HEAD.size :]
        if len(packed) < _HEAD.size or _HEAD.unpack_from(packed)[1] != crc32(body, crc32(key)):
            raise StoreDamagedError(f"the checksum of row {key.hex()} of '{self.name}' does not match")
        return body


def epoch_of(packed: bytes) -> int:
    """The snapshot that last contained the row."""
    return int(_NUMBER.unpack_from(packed)[0])


def same(first: bytes, second: bytes) -> bool:
    """Whether two stored rows are equal, apart from their epochs."""
    return first[_BODY:] == second[_BODY:]


class _Column:
    """How the values of one column are stored: simple values unchanged."""

    def __init__(self, kind: pa.DataType, stored: pa.DataType) -> None:
        self._kind, self._stored = kind, stored

    def out(self, values: pa.Array) -> list[Any]:
        """The stored form of the values."""
        return list((values if self._stored == self._kind else values.view(self._stored)).to_pylist())

    def back(self, stored: Sequence[Any]) -> pa.Array:
        """The inverse of `out`."""
        values = pa.array(stored, self._stored)
        return values if self._stored == self._kind else values.view(self._kind)


class _NestedColumn(_Column):
    """Lists, structs and maps: each value is encoded separately and decoded by its type."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind, kind)
        self._decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder(_python_type(kind)).decode

    def out(self, values: pa.Array) -> list[Any]:
        return [None if value is None else _encode(value) for value in values.to_pylist()]

    def back(self, stored: Sequence[Any]) -> pa.Array:
        return pa.array([None if value is None else self._decode(value) for value in stored], self._kind)


@lru_cache(maxsize=1024)
def _column(kind: pa.DataType) -> _Column:
    if pa.types.is_nested(kind):
        return _NestedColumn(kind)
    if pa.types.is_decimal(kind):
        return _Column(kind, pa.binary(16))
    if pa.types.is_timestamp(kind):
        return _Column(kind, pa.int64())
    return _Column(kind, pa.int32() if pa.types.is_date32(kind) else kind)


def _python_type(kind: pa.DataType) -> Any:
    """The Python type of a decoded nested value."""
    if pa.types.is_list(kind):
        return GenericAlias(list, (_python_type(kind.value_type) | None,))
    if pa.types.is_map(kind):
        pair = GenericAlias(tuple, (_python_type(kind.key_type), _python_type(kind.item_type) | None))
        return GenericAlias(list, (pair,))
    if pa.types.is_struct(kind):
        return _typed_dict("Struct", {field.name: _python_type(field.type) | None for field in kind})
    for matches, python_type in _SIMPLE:
        if matches(kind):
            return python_type
    return Any


_SIMPLE: tuple[tuple[Callable[[pa.DataType], bool], Any], ...] = (
    (pa.types.is_decimal, Decimal),
    (pa.types.is_timestamp, datetime),
    (pa.types.is_date, date),
    (pa.types.is_binary, bytes),
    (pa.types.is_floating, float),
)


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)
