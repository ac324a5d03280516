"""Scans of indexes, words and rows: yields the rows of a plan's source in the order of the plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec

from headrace.store.lmdb.errors import StoreDamagedError
from headrace.store.query.conditions import Row as Decoded
from headrace.store.query.cursors import Cursor
from headrace.store.query.key_ranges import Index, KeyRange, after
from headrace.store.query.planner import IndexRanges, Postings, QueryPlan, Source, Union
from headrace.store.query.transaction import QueryTransaction
from headrace.store.rows.layout import ROWS, TEXT, unpack_row

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_LONGEST = 511
"""The longest key of LMDB, in bytes: a longer one cannot be searched for."""


class TooManyError(Exception):
    """The query would read more rows than allowed."""


@dataclass
class Budget:
    """How many more rows may be read."""

    left: int

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise TooManyError


@dataclass(slots=True)
class Hit:
    """A candidate row: its position in the order of the plan, and its stored form if already read."""

    values: bytes
    key: bytes
    shortened: bool = False
    """Whether the index holds its values only in part."""
    packed: bytes | None = None


place = attrgetter("values", "key")


def packed(transaction: QueryTransaction, hit: Hit) -> bytes:
    """The stored row of a hit."""
    row = hit.packed
    if row is None:
        row = hit.packed = transaction.txn.get(hit.key, db=transaction.databases[ROWS])
    if row is None:
        raise StoreDamagedError(f"an index refers to row {hit.key.hex()}, which does not exist")
    return row


def items(transaction: QueryTransaction, hits: Sequence[Hit]) -> list[tuple[bytes, bytes]]:
    """Keys and stored rows of hits; rows that are not yet read are read in one call."""
    unread = [hit.key for hit in hits if hit.packed is None]
    if not unread:
        return [(hit.key, packed(transaction, hit)) for hit in hits]
    with transaction.txn.cursor(db=transaction.databases[ROWS]) as cursor:
        rows: dict[bytes, bytes] = dict(cursor.getmulti(unread))
    return [(hit.key, rows.get(hit.key) or packed(transaction, hit)) for hit in hits]


def decoded(transaction: QueryTransaction, hit: Hit) -> Decoded:
    row: Decoded = _decode(unpack_row(hit.key, packed(transaction, hit))[1])
    return row


def hits(transaction: QueryTransaction, chosen: QueryPlan, begin: Cursor | None, budget: Budget) -> Iterator[Hit]:
    """The hits of the plan's source after a position, in the plan's order."""
    source = chosen.source
    if source is None:
        return iter(())
    if isinstance(source, IndexRanges) and chosen.in_runs:
        return _in_runs(transaction, source, chosen.backwards, begin, budget)
    if isinstance(source, Union):
        return _union(transaction, source, begin, budget)
    return _raw(transaction, source, chosen.backwards, begin)


def _raw(
    transaction: QueryTransaction, source: IndexRanges | Postings, backwards: bool, begin: Cursor | None
) -> Iterator[Hit]:
    """In byte order."""
    if isinstance(source, Postings):
        return _word_entries(transaction, source.prefix, begin)
    start = None
    if begin is not None:
        start = begin.values + begin.key if backwards else begin.values + begin.key + b"\x00"
    if source.index.number is None:
        return _rows(transaction, source, backwards, start)
    return _entries(transaction, source, backwards, start)


def _rows(transaction: QueryTransaction, source: IndexRanges, backwards: bool, start: bytes | None) -> Iterator[Hit]:
    longest = source.index.longest
    for key, packed in _scan_ranges(transaction, source, backwards, start):
        yield Hit(b"", key, len(key) == longest, packed)


def _entries(transaction: QueryTransaction, source: IndexRanges, backwards: bool, start: bytes | None) -> Iterator[Hit]:
    longest = source.index.longest
    for entry, length in _scan_ranges(transaction, source, backwards, start):
        end = len(entry) - length[0]
        yield Hit(entry[:end], entry[end:], end == longest)


def _word_entries(transaction: QueryTransaction, prefix: bytes, begin: Cursor | None) -> Iterator[Hit]:
    start = prefix if begin is None else prefix + begin.key + b"\x00"
    key_range = KeyRange.of(prefix)
    with transaction.txn.cursor(db=transaction.databases[TEXT]) as cursor:
        for entry, _ in _forwards(cursor, start, key_range.high):
            yield Hit(b"", entry[len(prefix) :])


def _union(transaction: QueryTransaction, source: Union, begin: Cursor | None, budget: Budget) -> Iterator[Hit]:
    for key in sorted(_keys(transaction, source, budget)):
        if begin is None or key > begin.key:
            yield Hit(b"", key)


def _keys(transaction: QueryTransaction, source: Source, budget: Budget) -> set[bytes]:
    """The keys of the rows that any of several sources contains."""
    if isinstance(source, Union):
        return set[bytes]().union(*(_keys(transaction, part, budget) for part in source.sources))
    keys: set[bytes] = set()
    for hit in _raw(transaction, source, False, None):
        budget.spend()
        keys.add(hit.key)
    return keys


def _in_runs(
    transaction: QueryTransaction, source: IndexRanges, backwards: bool, begin: Cursor | None, budget: Budget
) -> Iterator[Hit]:
    """In the order of the values: entries with the same stored prefix are sorted by their rows."""
    index = source.index
    scan = _keyed if index.number is None else _entries
    run: list[Hit] = []
    for hit in scan(transaction, source, backwards, None if begin is None else _start(index, begin, backwards)):
        in_full = len(hit.values) <= index.value_bytes
        if run and (in_full or hit.values[: index.value_bytes] != run[0].values[: index.value_bytes]):
            yield from _ordered(transaction, index, run, backwards, begin)
            run = []
        if in_full:
            yield hit
        else:
            budget.spend()
            run.append(hit)
    yield from _ordered(transaction, index, run, backwards, begin)


def _keyed(transaction: QueryTransaction, source: IndexRanges, backwards: bool, start: bytes | None) -> Iterator[Hit]:
    """Rows with their key as the sort value."""
    for hit in _rows(transaction, source, backwards, start):
        hit.values = hit.key
        yield hit


def _start(index: Index, begin: Cursor, backwards: bool) -> bytes | None:
    """Where to resume; when the position is within a run, the whole run is needed to sort it."""
    if len(begin.values) > index.value_bytes:
        run = begin.values[: index.value_bytes]
        return after(run) if backwards else run
    last = begin.key if index.number is None else begin.values + begin.key
    return last if backwards else last + b"\x00"


def _ordered(
    transaction: QueryTransaction, index: Index, run: list[Hit], backwards: bool, begin: Cursor | None
) -> Iterator[Hit]:
    for hit in run:
        if hit.shortened:
            row = decoded(transaction, hit)
            hit.values = b"".join(field.key(row) for field in index.fields)
    run.sort(key=place, reverse=backwards)
    if begin is None:
        yield from run
        return
    last = (begin.values, begin.key)
    for hit in run:
        if place(hit) < last if backwards else place(hit) > last:
            yield hit


def _scan_ranges(
    transaction: QueryTransaction, source: IndexRanges, backwards: bool, start: bytes | None
) -> Iterator[tuple[bytes, bytes]]:
    """Keys and data of the key ranges; `start` is the first key to return, or backwards the first key to exclude."""
    with transaction.txn.cursor(db=transaction.databases[source.index.database]) as cursor:
        if backwards:
            for key_range in reversed(source.key_ranges):
                high = (
                    key_range.high if start is None else start if key_range.high is None else min(start, key_range.high)
                )
                yield from _backwards(cursor, key_range.low, high)
        else:
            for key_range in source.key_ranges:
                yield from _forwards(
                    cursor, key_range.low if start is None else max(start, key_range.low), key_range.high
                )


def _forwards(cursor: Any, low: bytes, high: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    if (high is not None and low >= high) or not cursor.set_range(low[:_LONGEST]):
        return
    for key, data in cursor.iternext():
        if high is not None and key >= high:
            return
        yield key, data


def _backwards(cursor: Any, low: bytes, high: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    if high is not None and low >= high:
        return
    positioned = cursor.prev() if high is not None and cursor.set_range(high[:_LONGEST]) else cursor.last()
    if not positioned:
        return
    for key, data in cursor.iterprev():
        if key < low:
            return
        yield key, data
