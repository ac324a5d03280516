"""Reads a store: any number of processes, each request in one read transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
import msgspec

from headrace.core.endpoints import Endpoint, Op
from headrace.store.endpoint.contents import Contents
from headrace.store.lmdb.environment import Environment, Transaction, acquire, release, translate_damage
from headrace.store.lmdb.errors import StoreDamagedError
from headrace.store.query import search
from headrace.store.query.key_ranges import indexes
from headrace.store.query.query import ResultPage, StoreQuery
from headrace.store.rows.layout import (
    ENDPOINT,
    EVENTS,
    FILE,
    META,
    NUMBER,
    REFUSED,
    ROWS,
    STATE,
    KeyMaker,
    State,
    databases,
    unpack_event,
    unsealed,
)
from headrace.store.rows.served_row import ServedRow, served_row


@dataclass(frozen=True, slots=True)
class StoreEvent:
    """A change that had an effect. After an update of the key, `key` is the new key and `old` has the old one."""

    version: int
    op: Op
    key: bytes
    new: bytes | None
    old: bytes | None


@dataclass(frozen=True)
class StoreEvents:
    """Events in order. If `first_kept` is greater than the requested version, the events in between are deleted."""

    first_kept: int
    events: list[StoreEvent]


class StoreReader:
    """A store that is open for reading."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        try:
            self.endpoint = self._endpoint()
            self.keys = KeyMaker(self.endpoint)
            self.indexes = indexes(self.endpoint)
            self.databases = {name: environment.open_db(name) for name in databases(self.endpoint)}
        except lmdb.NotFoundError as error:
            release(environment)
            raise StoreDamagedError(f"{environment.folder} is incomplete: {error}") from error
        except BaseException:
            release(environment)
            raise

    @staticmethod
    def open(folder: Path) -> StoreReader:
        """Open the store of a folder; StoreDamagedError when the folder has no store."""
        if not (folder / FILE).is_file():
            raise StoreDamagedError(f"{folder} has no store")
        return StoreReader(acquire(folder))

    @property
    def folder(self) -> Path:
        return self._environment.folder

    def close(self) -> None:
        """Close the reader; open transactions stay readable."""
        release(self._environment)

    def get(self, key: Sequence[Any]) -> ServedRow | None:
        """The row with these key values, read in its own transaction: faster than `transaction()` for a single row."""
        row_key = self.keys.row_key(key)
        packed = self._environment.get(row_key, self.databases[ROWS])
        return None if packed is None else served_row(row_key, packed)

    def find(self, query: StoreQuery, bound: int) -> ResultPage:
        """The rows of a page, read in its own transaction."""
        with ReadTransaction(self) as transaction:
            return transaction.query(query, bound)

    def count(self, query: StoreQuery, bound: int) -> int:
        """The number of rows of a query, read in its own transaction."""
        with ReadTransaction(self) as transaction:
            return transaction.count(query, bound)

    def transaction(self) -> ReadTransaction:
        return ReadTransaction(self)

    def begin(self) -> Transaction:
        """Begin a read transaction; the caller must call `end`."""
        return self._environment.begin()

    def end(self, txn: Transaction) -> None:
        self._environment.end(txn)

    def _endpoint(self) -> Endpoint:
        meta = self._environment.open_db(META)
        with self._environment.reading() as txn, translate_damage():
            document = msgspec.json.decode(unsealed(txn.get(ENDPOINT, db=meta)))
        return Endpoint.from_json(document)


class ReadTransaction:
    """A consistent snapshot of the store, whatever is written meanwhile."""

    def __init__(self, reader: StoreReader) -> None:
        self.reader = reader
        self.endpoint = reader.endpoint
        self.databases = reader.databases
        self.indexes = reader.indexes
        self.txn: Transaction = None
        self._rows_db = reader.databases[ROWS]
        self._state: State | None = None

    def __enter__(self) -> ReadTransaction:
        self.txn = self.reader.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.end(self.txn)

    @property
    def position(self) -> int:
        """The newest applied segment of the log."""
        return self._stored_state().position

    @property
    def version(self) -> int:
        """The number of the newest change."""
        return self._stored_state().version

    @property
    def rows(self) -> int:
        return self._stored_state().rows

    @property
    def refused(self) -> int:
        """The number of changes refused so far."""
        return self._stored_state().refused

    def get(self, key: Sequence[Any]) -> ServedRow | None:
        """The row with these values in its key columns."""
        return self.row(self.reader.keys.row_key(key))

    def row(self, key: bytes) -> ServedRow | None:
        with translate_damage():
            packed = self.txn.get(key, db=self._rows_db)
        return None if packed is None else served_row(key, packed)

    def query(self, query: StoreQuery, bound: int) -> ResultPage:
        """The rows of a page; RequestError when the query would read more than `bound` rows."""
        return search.find(self, query, bound)

    def count(self, query: StoreQuery, bound: int) -> int:
        return search.count(self, query, bound)

    def scan(self, after: bytes | None = None) -> Iterator[ServedRow]:
        """Rows in key order, after a row key if given."""
        with translate_damage(), self.txn.cursor(db=self._rows_db) as cursor:
            positioned = cursor.first() if after is None else cursor.set_range(after)
            if positioned and after is not None and cursor.key() == after:
                positioned = cursor.next()
            if positioned:
                for key, packed in cursor.iternext():
                    yield served_row(key, packed)

    def events(self, after: int, limit: int = 1000) -> StoreEvents:
        with translate_damage(), self.txn.cursor(db=self.databases[EVENTS]) as cursor:
            if not cursor.first():
                return StoreEvents(self.version + 1, [])
            first = NUMBER.unpack(cursor.key())[0]
            events: list[StoreEvent] = []
            if cursor.set_range(NUMBER.pack(max(after, 0) + 1)):
                for key, packed in cursor.iternext():
                    if len(events) == limit:
                        break
                    version, op, row_key, new, old = unpack_event(key, packed)
                    events.append(StoreEvent(version, Op(op), row_key, new, old))
            return StoreEvents(first, events)

    def refusals(self) -> list[dict[str, Any]]:
        """The last refused changes, each with its reason."""
        with translate_damage(), self.txn.cursor(db=self.databases[REFUSED]) as cursor:
            return [msgspec.json.decode(unsealed(note)) for note in cursor.iternext(keys=False)]

    def check(self) -> None:
        """Read everything; StoreDamagedError when anything is not as it was written."""
        with translate_damage():
            Contents(self.txn, self.endpoint, self.databases).check()

    def _stored_state(self) -> State:
        if self._state is None:
            with translate_damage():
                self._state = State.unpack(self.txn.get(STATE, db=self.databases[META]))
        return self._state
