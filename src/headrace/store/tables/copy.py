"""The copy of the tables of one table group: it completes changes that a source sends partially or repeatedly.

One LMDB environment holds the rows of all tables by key and, in the same transaction, the sequence of the log that they
correspond to. `take` applies what a source sent and returns the weighted rows; once the log has them, `commit` follows.
After a crash in between, the copy is behind the log and follows it; a lost copy is rebuilt from the log.
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
from headrace.store.lmdb.environment import MAP, Environment, Transaction, acquire, release, translate_damage
from headrace.store.rows.layout import sealed, unsealed
from headrace.store.tables.copy_rows import CopyRows, epoch_of
from headrace.store.tables.net_changes import Lookup, Net, net

_ROWS, _META, _STATE = b"rows", b"meta", b"state"
_AT_ONCE = 50_000
T = TypeVar("T")


class _CopiedTable(msgspec.Struct, frozen=True):
    number: int
    epoch: int = 0
    rows: int = 0
    open: bool = False
    """Whether a snapshot of the table is in progress."""
    stale: int = 0
    """How many rows the snapshot has not yet sent."""


class _State(msgspec.Struct, frozen=True):
    log: str = ""
    """The log that it is a copy of."""
    sequence: int = 0
    tables: dict[str, _CopiedTable] = {}


@dataclass
class _Open:
    """Changes that are applied but not yet committed."""

    txn: Transaction
    state: _State


class TableCopy:
    """The copy of one table group. Only one process and one thread may use it."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._open: _Open | None = None
        with translate_damage(), environment.lmdb.begin(write=True) as txn:
            self._rows, self._meta = (environment.lmdb.open_db(name, txn=txn) for name in (_ROWS, _META))
            packed = txn.get(_STATE, db=self._meta)
        self._state = _State() if packed is None else _read(packed)

    @staticmethod
    def open(folder: Path, *, size: int = MAP) -> TableCopy:
        """Open or create the copy in a folder. StoreDamagedError when it is not as it was written: remove the folder
        and rebuild the copy."""
        folder.mkdir(parents=True, exist_ok=True)
        environment = acquire(folder, write=True, size=size)
        try:
            return TableCopy(environment)
        except BaseException:
            release(environment)
            raise

    @property
    def log(self) -> str:
        """The log that it is a copy of; empty when the copy is empty or unfinished."""
        return self._state.log

    @property
    def sequence(self) -> int:
        """The newest commit of the log that it contains."""
        return self._state.sequence

    def counts(self) -> dict[str, int]:
        """The number of rows of each table."""
        return {name: table.rows for name, table in self._state.tables.items()}

    def take(self, batch: CapturedBatch, shapes: Mapping[str, TableShape]) -> dict[str, pa.Table]:
        """Apply a captured batch and return its weighted rows by table. `shapes` are the current shapes. `commit` or
        `abort` must follow."""
        return self._growing(lambda: self._take(batch, shapes))

    def commit(self, log: str, sequence: int) -> None:
        """Commit what was taken: the log has it under this sequence."""
        assert self._open is not None, "take precedes commit"
        try:
            self._close(replace(self._open.state, log=log, sequence=sequence))
        except lmdb.MapFullError:
            self.abort()
            self._environment.grow()
            raise

    def abort(self) -> None:
        """Discard what was taken."""
        if self._open is not None:
            self._open.txn.abort()
            self._open = None

    def follow(self, sequence: int, changes: Mapping[str, pa.Table], shapes: Mapping[str, TableShape]) -> None:
        """Apply weighted rows that the log already has: at most one of each weight per key and table.

        A snapshot in progress has to restart.
        """
        self._growing(lambda: self._follow(sequence, changes, shapes))

    def begin_again(self) -> None:
        """Delete everything; the copy counts as unfinished until `finish`."""
        with translate_damage(), self._environment.lmdb.begin(write=True) as txn:
            txn.drop(self._rows, delete=False)
            txn.put(_STATE, _packed(_State()), db=self._meta)
        self._state = _State()

    def finish(self, log: str, sequence: int) -> None:
        """Mark the copy as complete up to a sequence of the log."""
        self._begin()
        self.commit(log, sequence)

    def rows(self, table: str, shape: TableShape) -> Iterator[pa.RecordBatch]:
        known = self._state.tables.get(table)
        if known is None:
            return
        rows = CopyRows(table, known.number, shape)
        with self._environment.reading() as txn, translate_damage():
            items = []
            for item in _items(txn.cursor(self._rows), rows.prefix):
                items.append(item)
                if len(items) == _AT_ONCE:
                    yield rows.unpacked(items)
                    items = []
            yield rows.unpacked(items)

    def close(self) -> None:
        """Close the copy; discard what was taken and not committed."""
        self.abort()
        release(self._environment)

    def _growing(self, work: Callable[[], T]) -> T:
        """Run work in a transaction; when the map is full it grows, and the work is repeated."""
        while True:
            try:
                with translate_damage():
                    return work()
            except lmdb.MapFullError:
                self.abort()
                self._environment.grow()
            except BaseException:
                self.abort()
                raise

    def _begin(self) -> _Open:
        assert self._open is None, "commit or abort precedes the next take"
        self._open = _Open(self._environment.lmdb.begin(write=True), self._state)
        return self._open

    def _close(self, state: _State) -> None:
        transaction = self._open
        assert transaction is not None
        with translate_damage():
            transaction.txn.put(_STATE, _packed(state), db=self._meta)
            transaction.txn.commit()
        self._open = None
        self._state = state

    def _take(self, batch: CapturedBatch, shapes: Mapping[str, TableShape]) -> dict[str, pa.Table]:
        txn = self._begin().txn
        changed: dict[str, list[RowChange]] = {}
        for change in batch.changes:
            changed.setdefault(change.table, []).append(change)
        for name in batch.begins:
            table = self._table(name)
            self._set(name, replace(table, epoch=table.epoch + 1, open=True, stale=table.rows))
        weighted: dict[str, pa.Table] = {}
        for name in dict.fromkeys((*batch.rows, *changed, *batch.ends)):
            rows = CopyRows(name, self._table(name).number, shapes[name])
            tables = [self._settle(txn, rows, batch.rows.get(name), changed.get(name, []))]
            if name in batch.ends:
                tables.append(self._sweep(txn, rows))
            weighted[name] = pa.concat_tables(tables)
        return {name: rows for name, rows in weighted.items() if rows.num_rows}

    def _settle(self, txn: Transaction, rows: CopyRows, bulk: pa.Table | None, changes: list[RowChange]) -> pa.Table:
        if bulk is None and not changes:
            return rows.shape.weighted.empty_table()
        table = self._table(rows.name)
        changes_ = net(rows, table.epoch, bulk, changes, self._lookup(txn))
        self._write(txn, changes_)
        stale = table.stale - changes_.renewed if table.open else 0
        self._set(rows.name, replace(table, rows=table.rows + changes_.grown, stale=stale))
        assert changes_.rows is not None
        new = (
            changes_.rows
            if len(changes_.new) == changes_.rows.num_rows
            else changes_.rows.take(pa.array(changes_.new, pa.int64()))
        )
        return pa.concat_tables([_weighted(rows, rows.unpacked(changes_.gone), -1), _weighted(rows, new, 1)])

    def _sweep(self, txn: Transaction, rows: CopyRows) -> pa.Table:
        """Delete the rows that the snapshot did not send."""
        table = self._table(rows.name)
        if not table.open:
            raise ValueError(f"a snapshot of '{rows.name}' ends that did not begin since this copy was opened")
        missing = []
        if table.stale:
            items = _items(txn.cursor(self._rows), rows.prefix)
            missing = [(key, packed) for key, packed in items if epoch_of(packed) != table.epoch]
            for key, _packed_row in missing:
                txn.delete(key, db=self._rows)
        self._set(rows.name, replace(table, rows=table.rows - len(missing), open=False, stale=0))
        return _weighted(rows, rows.unpacked(missing), -1)

    def _follow(self, sequence: int, changes: Mapping[str, pa.Table], shapes: Mapping[str, TableShape]) -> None:
        transaction = self._begin()
        for name, weighted in changes.items():
            rows = CopyRows(name, self._table(name).number, shapes[name])
            self._replay(transaction.txn, rows, weighted)
        tables = {name: replace(table, open=False, stale=0) for name, table in transaction.state.tables.items()}
        self._close(replace(transaction.state, sequence=sequence, tables=tables))

    def _replay(self, txn: Transaction, rows: CopyRows, weighted: pa.Table) -> None:
        table = self._table(rows.name)
        gone, new = (
            rows.batch(weighted.filter(pc.equal(weighted.column(WEIGHT), weight)).drop_columns([WEIGHT]))
            for weight in (-1, 1)
        )
        deleted = sum(txn.delete(key, db=self._rows) for key in rows.keys(gone))
        keys = rows.keys(new)
        items = sorted(zip(keys, rows.packed(keys, new, table.epoch), strict=True))
        _put, added = txn.cursor(self._rows).putmulti(items) if items else (0, 0)
        self._set(rows.name, replace(table, rows=table.rows - deleted + added))

    def _lookup(self, txn: Transaction) -> Lookup:
        cursor = txn.cursor(self._rows)
        return lambda keys: dict(cursor.getmulti(keys))

    def _write(self, txn: Transaction, changes: Net) -> None:
        for key in changes.deletes:
            txn.delete(key, db=self._rows)
        if changes.puts:
            txn.cursor(self._rows).putmulti(changes.puts)

    def _table(self, name: str) -> _CopiedTable:
        """The table within the open transaction; a new table gets the next number."""
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


def _read(packed: bytes) -> _State:
    return msgspec.msgpack.decode(unsealed(packed), type=_State)
