"""The copy of the tables of one group: what makes changes whole that a source sends in part, or twice.

One LMDB environment: the rows of all tables by key, and in the same transaction the sequence of the log that they are
as of. What a source says goes in by `take`, which gives the weighted rows of it; once the log has them, `commit`. After
a crash in between the copy is behind the log and follows it; one that is lost is made again from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import lmdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from headrace.core.tables import WEIGHT, CapturedBatch, RowChange, TableShape
from headrace.store.lmdb.environment import MAP, Environment, Transaction, acquire, damage_told, release
from headrace.store.rows.layout import sealed, unsealed
from headrace.store.tables.copy_rows import CopyRows, epoch_of
from headrace.store.tables.net_changes import Lookup, Net, net

_ROWS, _META, _STATE = b"rows", b"meta", b"state"
_AT_ONCE = 50_000
T = TypeVar("T")


class _CopiedTable(msgspec.Struct, frozen=True):
    """What is known of one table."""

    number: int
    epoch: int = 0
    rows: int = 0
    open: bool = False
    """Whether all its rows are coming just now."""
    stale: int = 0
    """How many rows did not come yet since then."""


class _State(msgspec.Struct, frozen=True):
    """How far the copy is."""

    log: str = ""
    """Which log it is a copy of."""
    sequence: int = 0
    tables: dict[str, _CopiedTable] = {}


@dataclass
class _Open:
    """What was taken and not yet committed."""

    txn: Transaction
    state: _State


class TableCopy:
    """The one process that keeps a copy; to be used by one thread."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._open: _Open | None = None
        with damage_told(), environment.lmdb.begin(write=True) as txn:
            self._rows, self._meta = (environment.lmdb.open_db(name, txn=txn) for name in (_ROWS, _META))
            said = txn.get(_STATE, db=self._meta)
        self._state = _State() if said is None else _read(said)

    @staticmethod
    def open(folder: Path, *, size: int = MAP) -> TableCopy:
        """Open the copy in a folder, or begin an empty one. StoreDamagedError when it is not as it was written: remove
        the folder, and make it again."""
        folder.mkdir(parents=True, exist_ok=True)
        environment = acquire(folder, write=True, size=size)
        try:
            return TableCopy(environment)
        except BaseException:
            release(environment)
            raise

    @property
    def log(self) -> str:
        """The log that it is a copy of; nothing when it is empty, or was not finished."""
        return self._state.log

    @property
    def sequence(self) -> int:
        """The newest commit of the log that is in it."""
        return self._state.sequence

    def counts(self) -> dict[str, int]:
        """How many rows each table has."""
        return {name: table.rows for name, table in self._state.tables.items()}

    def take(self, taken: CapturedBatch, shapes: Mapping[str, TableShape]) -> dict[str, pa.Table]:
        """The weighted rows that something taken from the source comes to, by table; `shapes` are those that hold from
        here on. `commit` or `abort` must follow."""
        return self._growing(lambda: self._take(taken, shapes))

    def commit(self, log: str, sequence: int) -> None:
        """Keep what was taken: the log has it under this sequence."""
        assert self._open is not None, "something was taken"
        try:
            self._close(replace(self._open.state, log=log, sequence=sequence))
        except lmdb.MapFullError:
            self.abort()
            self._environment.grow()
            raise

    def abort(self) -> None:
        """Forget what was taken."""
        if self._open is not None:
            self._open.txn.abort()
            self._open = None

    def follow(self, sequence: int, changes: Mapping[str, pa.Table], shapes: Mapping[str, TableShape]) -> None:
        """Take in weighted rows that the log has already: at most one of each weight per key and table.

        A snapshot that was coming meanwhile has to begin again.
        """
        self._growing(lambda: self._follow(sequence, changes, shapes))

    def begin_again(self) -> None:
        """Forget everything; until `finish`, it is known to be unfinished."""
        with damage_told(), self._environment.lmdb.begin(write=True) as txn:
            txn.drop(self._rows, delete=False)
            txn.put(_STATE, _packed(_State()), db=self._meta)
        self._state = _State()

    def finish(self, log: str, sequence: int) -> None:
        """Say that it has all that this log has up to a sequence."""
        self._begin()
        self.commit(log, sequence)

    def rows(self, table: str, shape: TableShape) -> Iterator[pa.RecordBatch]:
        """All rows of a table."""
        known = self._state.tables.get(table)
        if known is None:
            return
        rows = CopyRows(table, known.number, shape)
        with self._environment.reading() as txn, damage_told():
            items = []
            for item in _items(txn.cursor(self._rows), rows.prefix):
                items.append(item)
                if len(items) == _AT_ONCE:
                    yield rows.unpacked(items)
                    items = []
            yield rows.unpacked(items)

    def close(self) -> None:
        """Be done; what was taken and not committed is forgotten."""
        self.abort()
        release(self._environment)

    def _growing(self, work: Callable[[], T]) -> T:
        """Work in a transaction; when the map is full it grows, and the work is done once more."""
        while True:
            try:
                with damage_told():
                    return work()
            except lmdb.MapFullError:
                self.abort()
                self._environment.grow()
            except BaseException:
                self.abort()
                raise

    def _begin(self) -> _Open:
        assert self._open is None, "what was taken before is committed"
        self._open = _Open(self._environment.lmdb.begin(write=True), self._state)
        return self._open

    def _close(self, state: _State) -> None:
        opened = self._open
        assert opened is not None
        with damage_told():
            opened.txn.put(_STATE, _packed(state), db=self._meta)
            opened.txn.commit()
        self._open = None
        self._state = state

    def _take(self, taken: CapturedBatch, shapes: Mapping[str, TableShape]) -> dict[str, pa.Table]:
        txn = self._begin().txn
        changed: dict[str, list[RowChange]] = {}
        for change in taken.changes:
            changed.setdefault(change.table, []).append(change)
        for name in taken.begins:
            table = self._table(name)
            self._set(name, replace(table, epoch=table.epoch + 1, open=True, stale=table.rows))
        found: dict[str, pa.Table] = {}
        for name in dict.fromkeys((*taken.rows, *changed, *taken.ends)):
            rows = CopyRows(name, self._table(name).number, shapes[name])
            made = [self._settle(txn, rows, taken.rows.get(name), changed.get(name, []))]
            if name in taken.ends:
                made.append(self._sweep(txn, rows))
            found[name] = pa.concat_tables(made)
        return {name: rows for name, rows in found.items() if rows.num_rows}

    def _settle(self, txn: Transaction, rows: CopyRows, bulk: pa.Table | None, changes: list[RowChange]) -> pa.Table:
        if bulk is None and not changes:
            return rows.shape.weighted.empty_table()
        table = self._table(rows.name)
        done = net(rows, table.epoch, bulk, changes, self._lookup(txn))
        self._write(txn, done)
        stale = table.stale - done.renewed if table.open else 0
        self._set(rows.name, replace(table, rows=table.rows + done.grown, stale=stale))
        assert done.rows is not None
        new = done.rows if len(done.new) == done.rows.num_rows else done.rows.take(pa.array(done.new, pa.int64()))
        return pa.concat_tables([_weighted(rows, rows.unpacked(done.gone), -1), _weighted(rows, new, 1)])

    def _sweep(self, txn: Transaction, rows: CopyRows) -> pa.Table:
        """Delete the rows that did not come since the snapshot began."""
        table = self._table(rows.name)
        if not table.open:
            raise ValueError(f"a snapshot of '{rows.name}' ends that did not begin since this copy was opened")
        gone = []
        if table.stale:
            items = _items(txn.cursor(self._rows), rows.prefix)
            gone = [(key, packed) for key, packed in items if epoch_of(packed) != table.epoch]
            for key, _packed_row in gone:
                txn.delete(key, db=self._rows)
        self._set(rows.name, replace(table, rows=table.rows - len(gone), open=False, stale=0))
        return _weighted(rows, rows.unpacked(gone), -1)

    def _follow(self, sequence: int, changes: Mapping[str, pa.Table], shapes: Mapping[str, TableShape]) -> None:
        opened = self._begin()
        for name, weighted in changes.items():
            rows = CopyRows(name, self._table(name).number, shapes[name])
            self._replay(opened.txn, rows, weighted)
        tables = {name: replace(table, open=False, stale=0) for name, table in opened.state.tables.items()}
        self._close(replace(opened.state, sequence=sequence, tables=tables))

    def _replay(self, txn: Transaction, rows: CopyRows, weighted: pa.Table) -> None:
        table = self._table(rows.name)
        gone, new = (
            rows.batch(weighted.filter(pc.equal(weighted.column(WEIGHT), weight)).drop_columns([WEIGHT]))
            for weight in (-1, 1)
        )
        deleted = sum(txn.delete(key, db=self._rows) for key in rows.keys(gone))
        keys = rows.keys(new)
        items = sorted(zip(keys, rows.packed(keys, new, table.epoch), strict=True))
        _taken, added = txn.cursor(self._rows).putmulti(items) if items else (0, 0)
        self._set(rows.name, replace(table, rows=table.rows - deleted + added))

    def _lookup(self, txn: Transaction) -> Lookup:
        cursor = txn.cursor(self._rows)
        return lambda keys: dict(cursor.getmulti(keys))

    def _write(self, txn: Transaction, done: Net) -> None:
        for key in done.deletes:
            txn.delete(key, db=self._rows)
        if done.puts:
            txn.cursor(self._rows).putmulti(done.puts)

    def _table(self, name: str) -> _CopiedTable:
        """As it is within what was taken; one that is new gets the next number."""
        assert self._open is not None
        tables = self._open.state.tables
        known = tables.get(name)
        return known or _CopiedTable(1 + max((table.number for table in tables.values()), default=0))

    def _set(self, name: str, table: _CopiedTable) -> None:
        assert self._open is not None
        self._open.state = replace(self._open.state, tables={**self._open.state.tables, name: table})


def _items(cursor: Any, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """All rows whose keys begin with a prefix."""
    if not cursor.set_range(prefix):
        return
    for key, packed in cursor.iternext():
        if not key.startswith(prefix):
            return
        yield key, packed


def _weighted(rows: CopyRows, batch: pa.RecordBatch, weight: int) -> pa.Table:
    weights = pa.repeat(pa.scalar(weight, pa.int64()), batch.num_rows)
    return pa.Table.from_arrays([*batch.columns, weights], schema=rows.shape.weighted)


def _packed(state: _State) -> bytes:
    return sealed(msgspec.msgpack.encode(state))


def _read(said: bytes) -> _State:
    return msgspec.msgpack.decode(unsealed(said), type=_State)
