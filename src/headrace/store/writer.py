"""Writing a store: each segment of the log in one transaction, together with its position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import pyarrow as pa

from headrace.core.endpoints import Endpoint
from headrace.store.environment import MAP, Environment, Transaction, acquire, damage_told, release
from headrace.store.errors import StoreDamagedError
from headrace.store.layout import (
    ENDPOINT,
    EVENTS,
    META,
    NUMBER,
    REFUSED,
    ROWS,
    STATE,
    TEXT,
    KeyMaker,
    databases,
    index_name,
    pack_row,
    pack_state,
    sealed,
    token_prefix,
    unpack_row,
    unpack_state,
    unsealed,
    words,
)
from headrace.store.resolve import Outcome, Prepared, Refusal, Resolver, prepare
from headrace.store.rowjson import Picker, RowJson

Batches = Iterable[pa.RecordBatch] | Callable[[], Iterable[pa.RecordBatch]]
_ROWS_AT_ONCE = 50_000
_REFUSED_KEPT = 1000


@dataclass
class Applied:
    """What became of the changes of a segment."""

    changes: int = 0
    ignored: int = 0
    refused: int = 0
    refusals: list[Refusal] = field(default_factory=list)
    """The first of those that were refused."""


@dataclass
class _State:
    position: int
    version: int
    rows: int
    refused: int

    def packed(self) -> bytes:
        return pack_state(self.position, self.version, self.rows, self.refused)


class StoreWriter:
    """The one process that writes a store."""

    def __init__(self, environment: Environment, endpoint: Endpoint, events: int) -> None:
        self._environment = environment
        self.endpoint = endpoint
        self._events = events
        self._maker = KeyMaker(endpoint)
        self._json = RowJson(endpoint.columns)
        indexed = dict.fromkeys(name for index in endpoint.indexes for name in index)
        found_by = list(dict.fromkeys((*indexed, *endpoint.text)))
        self._pick = Picker(endpoint.columns, found_by)
        self._index_at = [[found_by.index(name) for name in index] for index in endpoint.indexes]
        self._words_at = [found_by.index(name) for name in endpoint.text]
        self._databases = self._create()
        self._state = self._how_far()

    @staticmethod
    def open(folder: Path, endpoint: Endpoint, *, events: int = 100_000, size: int = MAP) -> StoreWriter:
        """Open the store of a folder, or begin one. Of events, that many are kept."""
        folder.mkdir(parents=True, exist_ok=True)
        environment = acquire(folder, write=True, size=size)
        try:
            environment.lmdb.reader_check()
            return StoreWriter(environment, endpoint, events)
        except BaseException:
            release(environment)
            raise

    @property
    def position(self) -> int:
        """The newest segment of the log that was applied."""
        return self._state.position

    @property
    def version(self) -> int:
        """The number of the newest change."""
        return self._state.version

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self._state.rows

    @property
    def refused(self) -> int:
        """How many changes were ever refused."""
        return self._state.refused

    def close(self) -> None:
        """Be done."""
        release(self._environment)

    def apply(self, position: int, batches: Batches) -> Applied:
        """Apply the changes of a segment, all or none. One that was applied before changes nothing.

        When the map is full it grows, and the changes are read once more: give a function that reads them, and they
        need not all be held in memory.
        """
        if position <= self._state.position:
            return Applied()
        read = batches if callable(batches) else _again(batches)
        while True:
            try:
                with damage_told():
                    return self._apply(position, read())
            except lmdb.MapFullError:
                self._environment.grow()

    def _apply(self, position: int, batches: Iterable[pa.RecordBatch]) -> Applied:
        state = _State(position, self._state.version, self._state.rows, self._state.refused)
        applied = Applied()
        before = 0
        with self._environment.lmdb.begin(write=True) as txn:
            for batch in _slices(batches):
                outcome = self._apply_batch(txn, batch, state)
                self._note(txn, outcome, applied, state, before)
                before += batch.num_rows
            txn.put(STATE, state.packed(), db=self._databases[META])
        self._state = state
        return applied

    def _apply_batch(self, txn: Transaction, batch: pa.RecordBatch, state: _State) -> Outcome:
        prepared = prepare(batch, self.endpoint, self._maker, self._json)
        there = self._there(txn, prepared.touched())
        outcome = Resolver(self.endpoint.conflicts, prepared, dict(there), state.version).run()
        self._write_rows(txn, outcome, prepared, there)
        self._write_entries(txn, outcome, prepared, there)
        self._write_events(txn, outcome)
        state.rows += sum(key not in there for key in outcome.rows) - sum(key in there for key in outcome.gone)
        state.version = outcome.version
        return outcome

    def _there(self, txn: Transaction, keys: set[bytes]) -> dict[bytes, bytes]:
        with txn.cursor(db=self._databases[ROWS]) as cursor:
            return {key: unpack_row(key, packed)[1] for key, packed in cursor.getmulti(sorted(keys))}

    def _write_rows(self, txn: Transaction, outcome: Outcome, prepared: Prepared, there: dict[bytes, bytes]) -> None:
        json = prepared.json
        items = ((key, pack_row(key, version, json[at])) for key, (at, version) in sorted(outcome.rows.items()))
        with txn.cursor(db=self._databases[ROWS]) as cursor:
            cursor.putmulti(items)
        self._delete(txn, ROWS, (key for key in outcome.gone if key in there))

    def _write_entries(self, txn: Transaction, outcome: Outcome, prepared: Prepared, there: dict[bytes, bytes]) -> None:
        """Entries of indexes and words: those of rows that are gone or changed are taken out, new ones put in."""
        touched = (*outcome.rows, *outcome.gone)
        olds = {key: self._pick(there[key]) for key in touched if key in there} if self._pick.names else {}
        for number, columns in enumerate(self._index_at):
            value_keys = self._maker.value_keys(number, prepared.batch)
            new = {value_keys[at] + key: key for key, (at, _) in outcome.rows.items()}
            value_key = self._maker.value_key
            old = {value_key(number, [values[at] for at in columns]) + key: key for key, values in olds.items()}
            self._replace(txn, index_name(number), old, new)
        if self._words_at:
            self._write_words(txn, outcome, prepared, olds)

    def _write_words(
        self, txn: Transaction, outcome: Outcome, prepared: Prepared, olds: dict[bytes, list[Any]]
    ) -> None:
        old: dict[bytes, bytes] = {}
        new: dict[bytes, bytes] = {}
        for number, (name, at) in enumerate(zip(self.endpoint.text, self._words_at, strict=True)):
            texts = prepared.batch.column(name).to_pylist()
            new.update(_entries(number, ((key, texts[row]) for key, (row, _) in outcome.rows.items())))
            old.update(_entries(number, ((key, values[at]) for key, values in olds.items())))
        self._replace(txn, TEXT, old, new)

    def _replace(self, txn: Transaction, name: bytes, old: dict[bytes, bytes], new: dict[bytes, bytes]) -> None:
        self._delete(txn, name, old.keys() - new.keys())
        added = sorted(new.keys() - old.keys())
        with txn.cursor(db=self._databases[name]) as cursor:
            cursor.putmulti((entry, bytes((len(new[entry]),))) for entry in added)

    def _delete(self, txn: Transaction, name: bytes, keys: Iterable[bytes]) -> None:
        database = self._databases[name]
        for key in sorted(keys):
            if not txn.delete(key, db=database):
                raise StoreDamagedError(f"{name.decode()} lacks the entry {key.hex()}")

    def _write_events(self, txn: Transaction, outcome: Outcome) -> None:
        with txn.cursor(db=self._databases[EVENTS]) as cursor:
            cursor.putmulti(outcome.events[-self._events :] if self._events else (), append=True)
            _forget(cursor, outcome.version - self._events)

    def _note(self, txn: Transaction, outcome: Outcome, applied: Applied, state: _State, before: int) -> None:
        applied.changes += len(outcome.events)
        applied.ignored += outcome.ignored
        applied.refused += len(outcome.refused)
        for refusal in outcome.refused:
            told = Refusal(before + refusal.index, refusal.op, refusal.reason, refusal.json)
            if len(applied.refusals) < _REFUSED_KEPT:
                applied.refusals.append(told)
            state.refused += 1
            txn.put(NUMBER.pack(state.refused), _refused_json(state.position, told), db=self._databases[REFUSED])
        if outcome.refused:
            with txn.cursor(db=self._databases[REFUSED]) as cursor:
                _forget(cursor, state.refused - _REFUSED_KEPT)

    def _create(self) -> dict[bytes, Any]:
        env = self._environment.lmdb
        definition = msgspec.json.encode(self.endpoint.to_json())
        with damage_told(), env.begin(write=True) as txn:
            found = {name: env.open_db(name, txn=txn) for name in databases(self.endpoint)}
            there = txn.get(ENDPOINT, db=found[META])
            if there is None:
                txn.put(STATE, _State(0, 0, 0, 0).packed(), db=found[META])
            else:
                self._same(Endpoint.from_json(msgspec.json.decode(unsealed(there))))
            if there != sealed(definition):
                txn.put(ENDPOINT, sealed(definition), db=found[META])
        return found

    def _same(self, there: Endpoint) -> None:
        if there.fingerprint != self.endpoint.fingerprint or there.indexes != self.endpoint.indexes:
            raise StoreDamagedError(f"{self._environment.folder} holds another definition of '{there.name}'")

    def _how_far(self) -> _State:
        with self._environment.reading() as txn, damage_told():
            return _State(*unpack_state(txn.get(STATE, db=self._databases[META])))


def _again(batches: Iterable[pa.RecordBatch]) -> Callable[[], Iterable[pa.RecordBatch]]:
    held = list(batches)
    return lambda: held


def _slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            yield batch.slice(start, _ROWS_AT_ONCE)


def _entries(number: int, texts: Iterable[tuple[bytes, str | None]]) -> Iterator[tuple[bytes, bytes]]:
    for key, text in texts:
        if text:
            yield from ((token_prefix(word, number) + key, key) for word in words(text))


def _forget(cursor: Any, last: int) -> None:
    """Remove what is numbered up to and including that."""
    while last > 0 and cursor.first() and NUMBER.unpack(cursor.key())[0] <= last:
        cursor.delete()


def _refused_json(position: int, refusal: Refusal) -> bytes:
    return msgspec.json.encode(
        {
            "position": position,
            "change": refusal.index,
            "op": refusal.op.name.lower(),
            "reason": refusal.reason,
            "row": msgspec.Raw(refusal.json),
        }
    )
