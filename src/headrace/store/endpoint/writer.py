"""Writes a store: each segment of the log in one transaction, together with its position."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import pyarrow as pa

from headrace.core.endpoints import Endpoint
from headrace.store.endpoint.contents import Contents
from headrace.store.endpoint.fill import REFUSED_KEPT, EndpointShape, Fill
from headrace.store.endpoint.resolve import BatchOutcome, RefusedChange
from headrace.store.lmdb.environment import MAP, Environment, acquire, release, translate_damage
from headrace.store.lmdb.errors import StoreDamagedError
from headrace.store.lmdb.pages import check_pages
from headrace.store.rows.layout import ENDPOINT, FILE, META, STATE, State, databases, sealed, unsealed

Batches = Iterable[pa.RecordBatch] | Callable[[], Iterable[pa.RecordBatch]]
_ROWS_AT_ONCE = 50_000


@dataclass
class Applied:
    """The result of the changes of a segment."""

    changes: int = 0
    ignored: int = 0
    refused: int = 0
    refusals: list[RefusedChange] = field(default_factory=list)
    """The first refused changes."""

    def add(self, outcome: BatchOutcome, before: int) -> list[RefusedChange]:
        """Add the result of a batch; returns the refused changes, numbered after those of the batches before."""
        refusals = [replace(refusal, index=before + refusal.index) for refusal in outcome.refused]
        self.changes += len(outcome.events)
        self.ignored += outcome.ignored
        self.refused += len(refusals)
        self.refusals += refusals[: max(0, REFUSED_KEPT - len(self.refusals))]
        return refusals


class StoreWriter:
    """Writes a store. Only one process may write it."""

    def __init__(self, environment: Environment, endpoint: Endpoint, events: int) -> None:
        self._environment = environment
        self._shape = EndpointShape(endpoint)
        self._events = events
        self._databases = self._create()
        with environment.reading() as txn, translate_damage():
            self._state = State.unpack(txn.get(STATE, db=self._databases[META]))

    @staticmethod
    def open(folder: Path, endpoint: Endpoint, *, events: int = 100_000, size: int = MAP) -> StoreWriter:
        """Open or create the store of a folder. `events` is how many events are kept.

        An existing store is checked completely first: StoreDamagedError when it is not as it was written. The check
        takes a few seconds for a million rows.
        """
        folder.mkdir(parents=True, exist_ok=True)
        exists = (folder / FILE).is_file()
        if exists:
            check_pages(folder / FILE)
        environment = acquire(folder, write=True, size=size)
        try:
            environment.lmdb.reader_check()
            writer = StoreWriter(environment, endpoint, events)
            if exists:
                writer.run_check(Contents.check)
            return writer
        except BaseException:
            release(environment)
            raise

    @property
    def endpoint(self) -> Endpoint:
        return self._shape.endpoint

    @property
    def folder(self) -> Path:
        return self._environment.folder

    @property
    def position(self) -> int:
        """The newest applied segment of the log."""
        return self._state.position

    @property
    def version(self) -> int:
        """The number of the newest change."""
        return self._state.version

    @property
    def rows(self) -> int:
        return self._state.rows

    @property
    def refused(self) -> int:
        """The number of changes refused so far."""
        return self._state.refused

    def close(self) -> None:
        release(self._environment)

    def apply(self, position: int, batches: Batches) -> Applied:
        """Apply the changes of a segment atomically. A segment that was applied before changes nothing.

        When the map is full it grows, and the changes are read again: pass a function that reads them, so that they
        need not all be held in memory.
        """
        if position <= self._state.position:
            return Applied()
        read = batches if callable(batches) else _again(batches)
        while True:
            try:
                with translate_damage(), _without_collector():
                    return self._apply(position, read())
            except lmdb.MapFullError:
                self._environment.grow()

    def verify(self) -> None:
        """Check everything and recompute the entries of all indexes: StoreDamagedError when they differ."""
        self.run_check(Contents.verify)

    def run_check(self, check: Callable[[Contents], None]) -> None:
        """Run a check in a read transaction."""
        with self._environment.reading() as txn, translate_damage():
            check(Contents(txn, self.endpoint, self._databases))

    def copy(self, target: Path) -> None:
        """Write a compact copy of one moment while readers and the writer continue."""
        target.mkdir(parents=True, exist_ok=True)
        with translate_damage():
            self._environment.lmdb.copy(str(target), compact=True)

    def _apply(self, position: int, batches: Iterable[pa.RecordBatch]) -> Applied:
        state = replace(self._state, position=position, sums=dict(self._state.sums))
        applied, before = Applied(), 0
        with self._environment.lmdb.begin(write=True) as txn:
            fill = Fill(txn, self._databases, self._shape, state, self._events)
            for batch in _slices(batches):
                fill.refuse(applied.add(fill.apply(batch), before))
                before += batch.num_rows
            txn.put(STATE, state.pack(), db=self._databases[META])
        self._state = state
        return applied

    def _create(self) -> dict[bytes, Any]:
        env = self._environment.lmdb
        definition = sealed(msgspec.json.encode(self.endpoint.to_json()))
        with translate_damage(), env.begin(write=True) as txn:
            databases_ = {name: env.open_db(name, txn=txn) for name in databases(self.endpoint)}
            stored = txn.get(ENDPOINT, db=databases_[META])
            if stored is None:
                txn.put(STATE, State.begin(self.endpoint).pack(), db=databases_[META])
            else:
                self._expect_same(Endpoint.from_json(msgspec.json.decode(unsealed(stored))))
            if stored != definition:
                txn.put(ENDPOINT, definition, db=databases_[META])
        return databases_

    def _expect_same(self, stored: Endpoint) -> None:
        own = self.endpoint
        if (stored.fingerprint, stored.indexes, stored.text) != (own.fingerprint, own.indexes, own.text):
            raise StoreDamagedError(f"{self.folder} holds another definition of '{stored.name}'")


@contextmanager
def _without_collector() -> Iterator[None]:
    """Disable the garbage collector: a batch creates many small objects and no cycles; collecting took a fifth of the
    time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _again(batches: Iterable[pa.RecordBatch]) -> Callable[[], Iterable[pa.RecordBatch]]:
    all_batches = list(batches)
    return lambda: all_batches


def _slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            yield batch.slice(start, _ROWS_AT_ONCE)
