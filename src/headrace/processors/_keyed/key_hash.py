"""Hashes of keys: 128 bits, the same on every machine and in every version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.processors._steps.columns import column_of

_BITS = 128


@dataclass(frozen=True)
class KeyHashes:
    """The two halves of the hash of each row's keys, and whether all of them are null."""

    high: NDArray[np.int64]
    low: NDArray[np.int64]
    keyless: NDArray[np.bool_]


def key_hashes(rows: pa.RecordBatch, keys: Sequence[str]) -> KeyHashes:
    """The hashes of some columns, or fields of structs. Equal values have equal hashes, -0.0 and 0.0 too."""
    columns = [column_of(rows, key) for key in keys]
    digests = b"".join([blake2b(text, digest_size=_BITS // 8).digest() for text in _texts(columns)])
    halves = np.frombuffer(digests, dtype="<i8").reshape(-1, 2)
    keyless = reduce(pc.and_, [pc.is_null(column) for column in columns])
    return KeyHashes(halves[:, 0], halves[:, 1], keyless.to_numpy(zero_copy_only=False))


def _texts(columns: Sequence[pa.Array]) -> list[bytes]:
    """The keys of each row as one text; different keys have different texts."""
    if len(columns) == 1:
        return [text or b"" for text in _bytes_of(columns[0])]
    parts = zip(*(_bytes_of(column) for column in columns), strict=True)
    return [b"".join(b"-" if text is None else b"%d:%b" % (len(text), text) for text in row) for row in parts]


def _bytes_of(column: pa.Array) -> list[bytes | None]:
    kind = column.type
    if pa.types.is_nested(kind):
        return [None if value is None else repr(_without_sign(value)).encode() for value in column.to_pylist()]
    if pa.types.is_temporal(kind):
        column = column.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    elif pa.types.is_floating(kind):
        column = pc.add(column, pa.scalar(0, kind))  # a zero without its sign
    if not pa.types.is_binary(column.type):
        column = (column if pa.types.is_string(column.type) else column.cast(pa.string())).cast(pa.binary())
    return list(column.to_pylist())


def _without_sign(value: Any) -> Any:
    """A value whose zeros have no sign."""
    match value:
        case float():
            return value + 0.0
        case dict():
            return {name: _without_sign(part) for name, part in value.items()}
        case list():
            return [_without_sign(part) for part in value]
    return value
