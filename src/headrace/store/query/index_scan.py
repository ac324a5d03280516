"""Walks along indexes, words and rows: what a plan's source finds, in the order of the plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.store.lmdb.errors import StoreDamagedError
from headrace.store.query.conditions import Row as Decoded
from headrace.store.query.cursors import Cursor
from headrace.store.query.key_ranges import Index, KeyRange, after
from headrace.store.query.planner import Postings, QueryPlan, Ranges, Source, Union
from headrace.store.rows.layout import ROWS, TEXT, unpack_row

if TYPE_CHECKING:
    from headrace.store.endpoint.reader import ReadTransaction

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_LONGEST = 511
"""Bytes of a key of LMDB: one that is longer cannot even be looked for."""


class TooManyError(Exception):
    """More rows would have to be looked at than is allowed."""


@dataclass
class Budget:
    """How many more rows may be looked at."""

    left: int

    def spend(self) -> None:
        """One is looked at."""
        self.left -= 1
        if self.left < 0:
            raise TooManyError


@dataclass(slots=True)
class Hit:
    """A row that may be meant: where it stands in the order of the plan, and what of it is at hand."""

    values: bytes
    key: bytes
    shortened: bool = False
    """Whether the index knows its values only in part."""
    packed: bytes | None = None


place = attrgetter("values", "key")


def packed(view: ReadTransaction, hit: Hit) -> bytes:
    """The row of a hit as it is kept."""
    found = hit.packed
    if found is None:
        found = hit.packed = view.txn.get(hit.key, db=view.reader.databases[ROWS])
    if found is None:
        raise StoreDamagedError(f"an index leads to row {hit.key.hex()}, which is not there")
    return found


def items(view: ReadTransaction, found: Sequence[Hit]) -> list[tuple[bytes, bytes]]:
    """Keys of hits with their rows as they are kept: what is not at hand is read at once."""
    wanted = [hit.key for hit in found if hit.packed is None]
    if not wanted:
        return [(hit.key, packed(view, hit)) for hit in found]
    with view.txn.cursor(db=view.reader.databases[ROWS]) as cursor:
        there: dict[bytes, bytes] = dict(cursor.getmulti(wanted))
    return [(hit.key, there.get(hit.key) or packed(view, hit)) for hit in found]


def decoded(view: ReadTransaction, hit: Hit) -> Decoded:
    """The row of a hit."""
    found: Decoded = _decode(unpack_row(hit.key, packed(view, hit))[1])
    return found


def hits(view: ReadTransaction, chosen: QueryPlan, begin: Cursor | None, budget: Budget) -> Iterator[Hit]:
    """What the plan's source finds after a place, in the plan's order."""
    source = chosen.source
    if source is None:
        return iter(())
    if isinstance(source, Ranges) and chosen.in_runs:
        return _in_runs(view, source, chosen.backwards, begin, budget)
    if isinstance(source, Union):
        return _united(view, source, begin, budget)
    return _raw(view, source, chosen.backwards, begin)


def _raw(view: ReadTransaction, source: Ranges | Postings, backwards: bool, begin: Cursor | None) -> Iterator[Hit]:
    """In the order of the bytes."""
    if isinstance(source, Postings):
        return _posted(view, source.prefix, begin)
    start = None
    if begin is not None:
        start = begin.values + begin.key if backwards else begin.values + begin.key + b"\x00"
    if source.index.number is None:
        return _rows(view, source, backwards, start)
    return _entries(view, source, backwards, start)


def _rows(view: ReadTransaction, source: Ranges, backwards: bool, start: bytes | None) -> Iterator[Hit]:
    longest = source.index.longest
    for key, packed in _along(view, source, backwards, start):
        yield Hit(b"", key, len(key) == longest, packed)


def _entries(view: ReadTransaction, source: Ranges, backwards: bool, start: bytes | None) -> Iterator[Hit]:
    longest = source.index.longest
    for entry, length in _along(view, source, backwards, start):
        end = len(entry) - length[0]
        yield Hit(entry[:end], entry[end:], end == longest)


def _posted(view: ReadTransaction, prefix: bytes, begin: Cursor | None) -> Iterator[Hit]:
    start = prefix if begin is None else prefix + begin.key + b"\x00"
    span = KeyRange.of(prefix)
    with view.txn.cursor(db=view.reader.databases[TEXT]) as cursor:
        for entry, _ in _forwards(cursor, start, span.high):
            yield Hit(b"", entry[len(prefix) :])


def _united(view: ReadTransaction, source: Union, begin: Cursor | None, budget: Budget) -> Iterator[Hit]:
    for key in sorted(_keys(view, source, budget)):
        if begin is None or key > begin.key:
            yield Hit(b"", key)


def _keys(view: ReadTransaction, source: Source, budget: Budget) -> set[bytes]:
    """The rows that any of several sources find."""
    if isinstance(source, Union):
        return set[bytes]().union(*(_keys(view, one, budget) for one in source.sources))
    found: set[bytes] = set()
    for hit in _raw(view, source, False, None):
        budget.spend()
        found.add(hit.key)
    return found


def _in_runs(
    view: ReadTransaction, source: Ranges, backwards: bool, begin: Cursor | None, budget: Budget
) -> Iterator[Hit]:
    """In the order of the values: entries that agree as far as their values are kept are sorted by their rows."""
    index = source.index
    walk = _keyed if index.number is None else _entries
    run: list[Hit] = []
    for hit in walk(view, source, backwards, None if begin is None else _start(index, begin, backwards)):
        in_full = len(hit.values) <= index.kept
        if run and (in_full or hit.values[: index.kept] != run[0].values[: index.kept]):
            yield from _ordered(view, index, run, backwards, begin)
            run = []
        if in_full:
            yield hit
        else:
            budget.spend()
            run.append(hit)
    yield from _ordered(view, index, run, backwards, begin)


def _keyed(view: ReadTransaction, source: Ranges, backwards: bool, start: bytes | None) -> Iterator[Hit]:
    """Rows with their key as what they are sorted by."""
    for hit in _rows(view, source, backwards, start):
        hit.values = hit.key
        yield hit


def _start(index: Index, begin: Cursor, backwards: bool) -> bytes | None:
    """From where to walk on; when the place is within a run, the whole of it is needed to sort it."""
    if len(begin.values) > index.kept:
        run = begin.values[: index.kept]
        return after(run) if backwards else run
    last = begin.key if index.number is None else begin.values + begin.key
    return last if backwards else last + b"\x00"


def _ordered(
    view: ReadTransaction, index: Index, run: list[Hit], backwards: bool, begin: Cursor | None
) -> Iterator[Hit]:
    for hit in run:
        if hit.shortened:
            row = decoded(view, hit)
            hit.values = b"".join(field.key(row) for field in index.fields)
    run.sort(key=place, reverse=backwards)
    if begin is None:
        yield from run
        return
    last = (begin.values, begin.key)
    for hit in run:
        if place(hit) < last if backwards else place(hit) > last:
            yield hit


def _along(
    view: ReadTransaction, source: Ranges, backwards: bool, start: bytes | None
) -> Iterator[tuple[bytes, bytes]]:
    """Keys and data of the ranges; `start` is the first key to be had, or the one before which to begin backwards."""
    with view.txn.cursor(db=view.reader.databases[source.index.database]) as cursor:
        if backwards:
            for span in reversed(source.spans):
                high = span.high if start is None else start if span.high is None else min(start, span.high)
                yield from _backwards(cursor, span.low, high)
        else:
            for span in source.spans:
                yield from _forwards(cursor, span.low if start is None else max(start, span.low), span.high)


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
    there = cursor.prev() if high is not None and cursor.set_range(high[:_LONGEST]) else cursor.last()
    if not there:
        return
    for key, data in cursor.iterprev():
        if key < low:
            return
        yield key, data
