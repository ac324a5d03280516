"""Writing a store: each segment of the log in one transaction, together with its position."""

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
from headrace.store.lmdb.environment import MAP, Environment, acquire, damage_told, release
from headrace.store.lmdb.errors import StoreDamagedError
from headrace.store.lmdb.pages import check_pages
from headrace.store.rows.layout import ENDPOINT, FILE, META, STATE, State, databases, sealed, unsealed

Batches = Iterable[pa.RecordBatch] | Callable[[], Iterable[pa.RecordBatch]]
_ROWS_AT_ONCE = 50_000


@dataclass
class Applied:
    """What became of the changes of a segment."""

    changes: int = 0
    ignored: int = 0
    refused: int = 0
    refusals: list[RefusedChange] = field(default_factory=list)
    """Those that were refused; of many, the first."""

    def add(self, outcome: BatchOutcome, before: int) -> list[RefusedChange]:
        """Count a batch in; gives what it refused, numbered after the changes of the batches before."""
        refusals = [replace(one, index=before + one.index) for one in outcome.refused]
        self.changes += len(outcome.events)
        self.ignored += outcome.ignored
        self.refused += len(refusals)
        self.refusals += refusals[: max(0, REFUSED_KEPT - len(self.refusals))]
        return refusals


class StoreWriter:
    """The one process that writes a store."""

    def __init__(self, environment: Environment, endpoint: Endpoint, events: int) -> None:
        self._environment = environment
        self._shape = EndpointShape(endpoint)
        self._events = events
        self._databases = self._create()
        with environment.reading() as txn, damage_told():
            self._state = State.unpack(txn.get(STATE, db=self._databases[META]))

    @staticmethod
    def open(folder: Path, endpoint: Endpoint, *, events: int = 100_000, size: int = MAP) -> StoreWriter:
        """Open the store of a folder, or begin one. Of events, that many are kept.

        One that is there is looked at as a whole before anything is believed: StoreDamagedError when it is not as it
        was written. That takes some seconds for a million rows.
        """
        folder.mkdir(parents=True, exist_ok=True)
        there = (folder / FILE).is_file()
        if there:
            check_pages(folder / FILE)
        environment = acquire(folder, write=True, size=size)
        try:
            environment.lmdb.reader_check()
            writer = StoreWriter(environment, endpoint, events)
            if there:
                writer.look(Contents.check)
            return writer
        except BaseException:
            release(environment)
            raise

    @property
    def endpoint(self) -> Endpoint:
        """What is stored."""
        return self._shape.endpoint

    @property
    def folder(self) -> Path:
        """Where it is stored."""
        return self._environment.folder

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
                with damage_told(), _without_collector():
                    return self._apply(position, read())
            except lmdb.MapFullError:
                self._environment.grow()

    def verify(self) -> None:
        """Look at everything, and make the entries of all indexes again to compare: StoreDamagedError."""
        self.look(Contents.verify)

    def look(self, check: Callable[[Contents], None]) -> None:
        """Let a check look at one moment of the store."""
        with self._environment.reading() as txn, damage_told():
            check(Contents(txn, self.endpoint, self._databases))

    def copy(self, target: Path) -> None:
        """A copy of one moment, without the room that was left free, while readers and the writer go on."""
        target.mkdir(parents=True, exist_ok=True)
        with damage_told():
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
        with damage_told(), env.begin(write=True) as txn:
            found = {name: env.open_db(name, txn=txn) for name in databases(self.endpoint)}
            there = txn.get(ENDPOINT, db=found[META])
            if there is None:
                txn.put(STATE, State.begin(self.endpoint).pack(), db=found[META])
            else:
                self._expect_same(Endpoint.from_json(msgspec.json.decode(unsealed(there))))
            if there != definition:
                txn.put(ENDPOINT, definition, db=found[META])
        return found

    def _expect_same(self, there: Endpoint) -> None:
        ours = self.endpoint
        if (there.fingerprint, there.indexes, there.text) != (ours.fingerprint, ours.indexes, ours.text):
            raise StoreDamagedError(f"{self.folder} holds another definition of '{there.name}'")


@contextmanager
def _without_collector() -> Iterator[None]:
    """A batch makes hundreds of thousands of small objects and no cycle of them: looking for one took a fifth of the
    time."""
    wanted = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if wanted:
            gc.enable()


def _again(batches: Iterable[pa.RecordBatch]) -> Callable[[], Iterable[pa.RecordBatch]]:
    held = list(batches)
    return lambda: held


def _slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            yield batch.slice(start, _ROWS_AT_ONCE)
