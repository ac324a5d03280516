"""One write transaction: rows, their index and word entries, events, and the checksum sums."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa

from headrace.core.endpoints import Endpoint
from headrace.store.endpoint.resolve import BatchOutcome, Prepared, RefusedChange, Resolver, prepare
from headrace.store.lmdb.environment import Transaction
from headrace.store.lmdb.errors import StoreDamagedError
from headrace.store.rows.layout import (
    EVENTS,
    LENGTHS,
    NUMBER,
    REFUSED,
    ROWS,
    TEXT,
    KeyMaker,
    State,
    index_name,
    pack_row,
    sealed,
    sum_of_entries,
    sum_of_rows,
    token_prefix,
    unpack_row,
    words,
)
from headrace.store.rows.row_json import Picker, RowJson

REFUSED_KEPT = 1000
_Columns = dict[str, pa.Array]
_Items = list[tuple[bytes, bytes]]


class EndpointShape:
    """Everything derived from the definition of an endpoint, computed once for all transactions."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.keys = KeyMaker(endpoint)
        self.json = RowJson(endpoint.columns)
        self.indexed = list(dict.fromkeys((*(name for index in endpoint.indexes for name in index), *endpoint.text)))
        """The columns of indexes and words."""
        self.pick = Picker(endpoint.columns, self.indexed)


@dataclass
class _Changed:
    """Rows that change, and their stored form before."""

    prepared: Prepared
    outcome: BatchOutcome
    stored: dict[bytes, bytes]
    """The stored rows, packed."""
    json: dict[bytes, bytes]

    @cached_property
    def before(self) -> list[bytes]:
        """Keys of the rows that existed."""
        return [key for key in (*self.outcome.rows, *self.outcome.gone) if key in self.stored]


@dataclass
class Fill:
    """One transaction. `state` is the state of the store once the transaction commits."""

    txn: Transaction
    databases: dict[bytes, Any]
    shape: EndpointShape
    state: State
    events: int
    """How many events are kept."""

    def apply(self, batch: pa.RecordBatch) -> BatchOutcome:
        shape, state = self.shape, self.state
        prepared = prepare(batch, shape.endpoint, shape.keys, shape.json)
        with self.txn.cursor(db=self.databases[ROWS]) as cursor:
            stored: dict[bytes, bytes] = dict(cursor.getmulti(sorted(prepared.touched())))
        json = {key: unpack_row(key, packed)[1] for key, packed in stored.items()}
        outcome = Resolver(shape.endpoint.conflicts, prepared, dict(json), state.version).run()
        changed = _Changed(prepared, outcome, stored, json)
        self._rows(changed)
        if shape.indexed:
            self._entries(changed)
        self._write_events(outcome)
        state.version = outcome.version
        return outcome

    def refuse(self, refusals: Iterable[RefusedChange]) -> None:
        """Store refused changes; only the last ones are kept."""
        for refusal in refusals:
            self.state.refused += 1
            note = sealed(_refused_json(self.state.position, refusal))
            self.txn.put(NUMBER.pack(self.state.refused), note, db=self.databases[REFUSED])
        with self.txn.cursor(db=self.databases[REFUSED]) as cursor:
            _forget(cursor, self.state.refused - REFUSED_KEPT)

    def _rows(self, changed: _Changed) -> None:
        json, stored, outcome = changed.prepared.json, changed.stored, changed.outcome
        items = [(key, pack_row(key, version, json[at])) for key, (at, version) in outcome.rows.items()]
        before = changed.before
        self._put(ROWS, items)
        self._delete(ROWS, (key for key in outcome.gone if key in stored))
        self.state.rows += len(items) - len(before)
        self.state.sums[ROWS] += sum_of_rows(packed for _, packed in items) - sum_of_rows(stored[key] for key in before)

    def _entries(self, changed: _Changed) -> None:
        """Replace the entries of rows that changed or were deleted."""
        shape, keys = self.shape, changed.before
        values = shape.pick.columns(changed.json[key] for key in keys)
        before = dict(zip(shape.indexed, values, strict=True))
        now = {name: changed.prepared.batch.column(name) for name in shape.indexed}
        for number in range(len(shape.endpoint.indexes)):
            pairs = zip(keys, shape.keys.value_keys(number, before), strict=True)
            old = {key: value_key + key for key, value_key in pairs}
            self._index(index_name(number), changed.outcome, shape.keys.value_keys(number, now), old)
        if shape.endpoint.text:
            self._words(changed.outcome, keys, before, now)

    def _index(self, name: bytes, outcome: BatchOutcome, value_keys: list[bytes], old: dict[bytes, bytes]) -> None:
        stale = [(old[key], LENGTHS[len(key)]) for key in outcome.gone if key in old]
        new = []
        for key, (at, _) in outcome.rows.items():
            entry, before = value_keys[at] + key, old.get(key)
            if entry != before:
                new.append((entry, LENGTHS[len(key)]))
                if before is not None:
                    stale.append((before, LENGTHS[len(key)]))
        self._replace(name, stale, new)

    def _words(self, outcome: BatchOutcome, keys: list[bytes], before: _Columns, now: _Columns) -> None:
        old: set[tuple[bytes, bytes]] = set()
        new: set[tuple[bytes, bytes]] = set()
        for number, name in enumerate(self.shape.endpoint.text):
            texts = now[name].to_pylist()
            new.update(word_entries(number, ((key, texts[at]) for key, (at, _) in outcome.rows.items())))
            old.update(word_entries(number, zip(keys, before[name].to_pylist(), strict=True)))
        self._replace(TEXT, list(old - new), list(new - old))

    def _replace(self, name: bytes, stale: _Items, new: _Items) -> None:
        self._delete(name, (entry for entry, _ in stale))
        self._put(name, new)
        self.state.sums[name] += sum_of_entries(new) - sum_of_entries(stale)

    def _put(self, name: bytes, items: _Items) -> None:
        items.sort()
        with self.txn.cursor(db=self.databases[name]) as cursor:
            cursor.putmulti(items)

    def _delete(self, name: bytes, keys: Iterable[bytes]) -> None:
        database = self.databases[name]
        for key in sorted(keys):
            if not self.txn.delete(key, db=database):
                raise StoreDamagedError(f"{name.decode()} lacks the entry {key.hex()}")

    def _write_events(self, outcome: BatchOutcome) -> None:
        with self.txn.cursor(db=self.databases[EVENTS]) as cursor:
            cursor.putmulti(outcome.events[-self.events :] if self.events else (), append=True)
            _forget(cursor, outcome.version - self.events)


def word_entries(number: int, texts: Iterable[tuple[bytes, str | None]]) -> Iterator[tuple[bytes, bytes]]:
    """The entries of the words of a text column, from row keys and texts."""
    for key, text in texts:
        if text:
            yield from ((token_prefix(word, number) + key, LENGTHS[len(key)]) for word in words(text))


def _forget(cursor: Any, last: int) -> None:
    """Delete entries up to and including that number."""
    if last > 0 and cursor.first():
        bound = NUMBER.pack(last)
        while (key := cursor.key()) and key <= bound:
            cursor.delete()


def _refused_json(position: int, refusal: RefusedChange) -> bytes:
    return msgspec.json.encode(
        {
            "position": position,
            "change": refusal.index,
            "op": refusal.op.name.lower(),
            "reason": refusal.reason,
            "row": msgspec.Raw(refusal.json),
        }
    )
