"""The layout of a store: the names of its databases and the format of their keys. Reader and writer share it."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from zlib import crc32

import pyarrow as pa

from headrace.core.endpoints import Endpoint
from headrace.store.lmdb.errors import StoreDamagedError
from headrace.store.rows.keys import codec
from headrace.store.rows.tokens import tokens

ROWS, TEXT, EVENTS, META, REFUSED = b"rows", b"text", b"events", b"meta", b"refused"
FILE = "data.mdb"
"""The name of LMDB's data file."""
ENDPOINT, STATE = b"endpoint", b"state"
ROW_KEY, VALUE_KEY = 200, 280
"""The maximum length of keys. A longer key ends in a hash and has exactly this length, which no complete key has."""
_ROW_HASH, _VALUE_HASH = 32, 16
NUMBER = struct.Struct(">Q")
_HEAD = struct.Struct(">QI")
_EVENT = struct.Struct(">QBHI")
_STATE = struct.Struct(">QQQQ")
_CRC = struct.Struct(">I")
_SUM = 16
_AT_ONCE = 10_000


def index_name(number: int) -> bytes:
    return b"ix%d" % number


def databases(endpoint: Endpoint) -> list[bytes]:
    """The names of all databases of a store of this endpoint."""
    return [ROWS, TEXT, EVENTS, META, REFUSED, *(index_name(number) for number in range(len(endpoint.indexes)))]


def shortened_row_key(whole: bytes) -> bytes:
    """The key of a row from the encoded values of its key columns."""
    if len(whole) < ROW_KEY:
        return whole
    return whole[: ROW_KEY - _ROW_HASH] + hashlib.sha256(whole).digest()


def shortened_value_key(whole: bytes) -> bytes:
    """The first part of an index entry, from the encoded values of its columns."""
    if len(whole) < VALUE_KEY:
        return whole
    return whole[: VALUE_KEY - _VALUE_HASH] + hashlib.blake2b(whole, digest_size=_VALUE_HASH).digest()


def is_shortened(value_key: bytes) -> bool:
    """Whether an entry holds only a prefix of its values: comparing or sorting by them needs the rows."""
    return len(value_key) == VALUE_KEY


def words(text: str) -> set[bytes]:
    return {word.encode() for word in tokens(text)}


def token_prefix(word: bytes, column: int) -> bytes:
    """The prefix of the entries of a word; `column` is the number of the text column. The row's key follows."""
    return word + b"\x00" + bytes((column,))


LENGTHS = [bytes((length,)) for length in range(256)]
"""The value of an entry: the length of the row key at its end."""


class KeyMaker:
    """Builds the keys of rows and index entries of an endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        columns = endpoint.columns
        self._key = [codec(columns.field(name).type) for name in endpoint.key]
        self._key_names = endpoint.key
        self._indexes = [[(name, codec(columns.field(name).type)) for name in index] for index in endpoint.indexes]

    def row_key(self, values: Sequence[Any]) -> bytes:
        """From the typed values of the key columns."""
        if len(self._key) == 1:
            return shortened_row_key(self._key[0].encode(values[0]))
        parts = [part.encode(value) for part, value in zip(self._key, values, strict=True)]
        return shortened_row_key(b"".join(parts))

    def row_keys(self, columns: Sequence[pa.Array]) -> list[bytes]:
        encoded = [part.column(values) for part, values in zip(self._key, columns, strict=True)]
        return [key if len(key) < ROW_KEY else shortened_row_key(key) for key in _joined(encoded)]

    def value_key(self, index: int, values: Sequence[Any]) -> bytes:
        """From the typed values of an index's columns."""
        parts = [part.encode(value) for (_, part), value in zip(self._indexes[index], values, strict=True)]
        return shortened_value_key(b"".join(parts))

    def value_keys(self, index: int, columns: Mapping[str, pa.Array]) -> list[bytes]:
        """From the columns of many rows."""
        encoded = [part.column(columns[name]) for name, part in self._indexes[index]]
        return [key if len(key) < VALUE_KEY else shortened_value_key(key) for key in _joined(encoded)]


def _joined(columns: list[list[bytes]]) -> list[bytes]:
    return columns[0] if len(columns) == 1 else [b"".join(parts) for parts in zip(*columns, strict=True)]


def pack_row(key: bytes, version: int, json: bytes) -> bytes:
    """The stored form of a row. The checksum covers the key too: a row under a wrong key is damage."""
    return _HEAD.pack(version, crc32(json, crc32(key + NUMBER.pack(version)))) + json


def unpack_row(key: bytes, packed: bytes) -> tuple[int, bytes]:
    """The version and the JSON of a row."""
    if len(packed) < _HEAD.size:
        raise StoreDamagedError(f"a row of {len(packed)} bytes")
    version, checksum = _HEAD.unpack_from(packed)
    json = packed[_HEAD.size :]
    if crc32(json, crc32(key + packed[: NUMBER.size])) != checksum:
        raise StoreDamagedError(f"the checksum of row {key.hex()} does not match")
    return version, json


def sum_of_entries(items: Iterable[tuple[bytes, bytes]]) -> int:
    """The sum of the checksums of index or word entries and of their values."""
    return sum(crc32(entry) + length[0] for entry, length in items)


def sum_of_rows(packed: Iterable[bytes]) -> int:
    """The sum of the checksums of stored rows."""
    total, packed = 0, iter(packed)
    while chunk := [row[NUMBER.size : _HEAD.size] for row in islice(packed, _AT_ONCE)]:
        total += sum(struct.unpack(f">{len(chunk)}I", b"".join(chunk)))
    return total


def pack_event(version: int, op: int, key: bytes, new: bytes | None, old: bytes | None) -> tuple[bytes, bytes]:
    new = new or b""
    body = b"".join((_EVENT.pack(version, op, len(key), len(new)), key, new, old or b""))
    return body[: NUMBER.size], _CRC.pack(crc32(body)) + body


def unpack_event(number: bytes, packed: bytes) -> tuple[int, int, bytes, bytes | None, bytes | None]:
    """Version, operation, row key, new and old JSON of an event."""
    body = unsealed(packed)
    if len(body) < _EVENT.size or body[: NUMBER.size] != number:
        raise StoreDamagedError(f"event {number.hex()} is stored under another number")
    version, op, key_length, new_length = _EVENT.unpack_from(body)
    key_end = _EVENT.size + key_length
    new_end = key_end + new_length
    return version, op, body[_EVENT.size : key_end], body[key_end:new_end] or None, body[new_end:] or None


@dataclass
class State:
    """The state of a store, as stored in `meta`."""

    position: int
    version: int
    rows: int
    refused: int
    sums: dict[bytes, int]
    """Sums of the checksums of rows and entries, by database."""

    @staticmethod
    def begin(endpoint: Endpoint) -> State:
        """The state of an empty store."""
        indexes = [index_name(number) for number in range(len(endpoint.indexes))]
        return State(0, 0, 0, 0, dict.fromkeys([ROWS, TEXT, *indexes], 0))

    def pack(self) -> bytes:
        numbers = _STATE.pack(self.position, self.version, self.rows, self.refused)
        sums = [bytes((len(name),)) + name + total.to_bytes(_SUM, "big") for name, total in self.sums.items()]
        return sealed(b"".join((numbers, *sums)))

    @staticmethod
    def unpack(packed: bytes | None) -> State:
        body = unsealed(packed)
        sums, at = {}, _STATE.size
        while at < len(body):
            name_end = at + 1 + body[at]
            sums[body[at + 1 : name_end]] = int.from_bytes(body[name_end : name_end + _SUM], "big")
            at = name_end + _SUM
        position, version, rows, refused = _STATE.unpack_from(body)
        return State(position, version, rows, refused, sums)


def sealed(body: bytes) -> bytes:
    """The body with its checksum in front."""
    return _CRC.pack(crc32(body)) + body


def unsealed(packed: bytes | None) -> bytes:
    """The body of a sealed value; StoreDamagedError when the checksum does not match."""
    if packed is None or len(packed) < _CRC.size or crc32(packed[_CRC.size :]) != _CRC.unpack_from(packed)[0]:
        raise StoreDamagedError("the checksum of a meta entry does not match")
    return packed[_CRC.size :]


def old_keys(maker: KeyMaker, olds: pa.StructArray, names: Iterable[str]) -> list[bytes | None]:
    """The old keys of changes; None where the key did not change."""
    valid = olds.is_valid()
    keys = iter(maker.row_keys([olds.filter(valid).field(name) for name in names]))
    return [next(keys) if has_old else None for has_old in valid.to_pylist()]
