"""Reading a store: as many processes as are wanted, each request in one moment of the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import msgspec

from headrace.core.endpoints import Endpoint, Op
from headrace.store.endpoint.contents import Contents
from headrace.store.lmdb.environment import Environment, Transaction, acquire, damage_told, release
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
    unpack_row,
    unsealed,
)


class ServedRow(NamedTuple):
    """A row as it is served."""

    version: int
    json: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class StoreEvent:
    """A change that had an effect. An update that changed the key has the new one here, and the old in `old`."""

    version: int
    op: Op
    key: bytes
    new: bytes | None
    old: bytes | None


@dataclass(frozen=True)
class StoreEvents:
    """Events in their order. When `first_kept` is greater than what was asked for, those between are forgotten."""

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
            raise StoreDamagedError(f"{environment.folder} lacks a part: {error}") from error
        except BaseException:
            release(environment)
            raise

    @staticmethod
    def open(folder: Path) -> StoreReader:
        """Open the store of a folder; StoreDamagedError when it is none."""
        if not (folder / FILE).is_file():
            raise StoreDamagedError(f"there is no store in {folder}")
        return StoreReader(acquire(folder))

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self._environment.folder

    def close(self) -> None:
        """Be done; views that are open can still be read."""
        release(self._environment)

    def get(self, key: Sequence[Any]) -> ServedRow | None:
        """One row, in a moment of its own: the same as of a view, for those who ask for nothing else."""
        wanted = self.keys.row_key(key)
        packed = self._environment.get(wanted, self.databases[ROWS])
        return None if packed is None else ServedRow(*unpack_row(wanted, packed), wanted)

    def find(self, query: StoreQuery, bound: int) -> ResultPage:
        """The rows of a page, in a moment of their own."""
        with ReadTransaction(self) as view:
            return view.query(query, bound)

    def count(self, query: StoreQuery, bound: int) -> int:
        """How many rows a query gives, in a moment of their own."""
        with ReadTransaction(self) as view:
            return view.count(query, bound)

    def view(self) -> ReadTransaction:
        """One moment of the store, to be used in a `with` block."""
        return ReadTransaction(self)

    def begin(self) -> Transaction:
        """Begin to read; `end` must follow."""
        return self._environment.begin()

    def end(self, txn: Transaction) -> None:
        """Be done with reading."""
        self._environment.end(txn)

    def _endpoint(self) -> Endpoint:
        meta = self._environment.open_db(META)
        with self._environment.reading() as txn, damage_told():
            document = msgspec.json.decode(unsealed(txn.get(ENDPOINT, db=meta)))
        return Endpoint.from_json(document)


class ReadTransaction:
    """What a store holds at one moment, whatever is written meanwhile."""

    def __init__(self, reader: StoreReader) -> None:
        self.reader = reader
        self.txn: Transaction = None
        self._rows_db = reader.databases[ROWS]
        self._state: State | None = None

    def __enter__(self) -> ReadTransaction:
        self.txn = self.reader.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.end(self.txn)

    @property
    def endpoint(self) -> Endpoint:
        """What is served."""
        return self.reader.endpoint

    @property
    def position(self) -> int:
        """The newest segment of the log that is in it."""
        return self._how_far().position

    @property
    def version(self) -> int:
        """The number of its newest change."""
        return self._how_far().version

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self._how_far().rows

    @property
    def refused(self) -> int:
        """How many changes were refused so far."""
        return self._how_far().refused

    def get(self, key: Sequence[Any]) -> ServedRow | None:
        """The row with these values in its key columns."""
        return self.row(self.reader.keys.row_key(key))

    def row(self, key: bytes) -> ServedRow | None:
        """The row with this row key."""
        with damage_told():
            packed = self.txn.get(key, db=self._rows_db)
        if packed is None:
            return None
        return ServedRow(*unpack_row(key, packed), key)

    def unpacked(self, items: Iterable[tuple[bytes, bytes]]) -> list[ServedRow]:
        """Rows as they are served, from their keys and how they are kept."""
        return [ServedRow(*unpack_row(key, packed), key) for key, packed in items]

    def query(self, query: StoreQuery, bound: int) -> ResultPage:
        """The rows of a page; RequestError when more than `bound` rows would have to be looked at."""
        return search.find(self, query, bound)

    def count(self, query: StoreQuery, bound: int) -> int:
        """How many rows a query gives."""
        return search.count(self, query, bound)

    def scan(self, after: bytes | None = None) -> Iterator[ServedRow]:
        """Rows in the order of their keys, those after a row key if one is given."""
        with damage_told(), self.txn.cursor(db=self._rows_db) as cursor:
            there = cursor.first() if after is None else cursor.set_range(after)
            if there and after is not None and cursor.key() == after:
                there = cursor.next()
            if there:
                for key, packed in cursor.iternext():
                    version, json = unpack_row(key, packed)
                    yield ServedRow(version, json, key)

    def events(self, after: int, limit: int = 1000) -> StoreEvents:
        """The events after a version."""
        with damage_told(), self.txn.cursor(db=self.reader.databases[EVENTS]) as cursor:
            if not cursor.first():
                return StoreEvents(self.version + 1, [])
            first = NUMBER.unpack(cursor.key())[0]
            found: list[StoreEvent] = []
            if cursor.set_range(NUMBER.pack(max(after, 0) + 1)):
                for key, packed in cursor.iternext():
                    if len(found) == limit:
                        break
                    version, op, row_key, new, old = unpack_event(key, packed)
                    found.append(StoreEvent(version, Op(op), row_key, new, old))
            return StoreEvents(first, found)

    def refusals(self) -> list[dict[str, Any]]:
        """The last changes that were refused, as they were, each with the reason."""
        with damage_told(), self.txn.cursor(db=self.reader.databases[REFUSED]) as cursor:
            return [msgspec.json.decode(unsealed(note)) for note in cursor.iternext(keys=False)]

    def check(self) -> None:
        """StoreDamagedError when anything is not as it was written: all of it is read."""
        with damage_told():
            Contents(self.txn, self.endpoint, self.reader.databases).check()

    def _how_far(self) -> State:
        if self._state is None:
            with damage_told():
                self._state = State.unpack(self.txn.get(STATE, db=self.reader.databases[META]))
        return self._state
