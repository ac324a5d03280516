"""Captures tables of a PostgreSQL database: a snapshot of their rows, then every change after it.

A new slot starts at a WAL position and exports the snapshot of that position: the rows contain all transactions before
it, the stream all after it. A table that joins later is read under the snapshot of a temporary slot, once the stream of
the other tables has reached its position. An interrupted snapshot continues in the same way.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
import pyarrow as pa

from headrace.core.errors import ProjectError
from headrace.core.positions import Position
from headrace.core.tables import CapturedBatch, TableReader, TableShape
from headrace.systems.postgres.tables import Connection, TableServer, explained
from headrace.systems.services import service_unavailable
from headrace.tables.postgres import catalog
from headrace.tables.postgres.pgoutput import LIMIT, Followed, Portion, SentColumn, Transactions
from headrace.tables.postgres.publication import keep_publication, require_publication
from headrace.tables.postgres.snapshot import Export, TableSnapshot, snapshot_shape
from headrace.tables.postgres.stream import ReplicationStream, lsn_number, lsn_text
from headrace.tables.postgres.types import TEXT, PgType

_MOVE_SECONDS = 10.0
"""How often the confirmed position advances while nothing changes; otherwise the server would keep its WAL."""


@dataclass(frozen=True)
class FollowedTable:
    """A table to capture."""

    table: str
    texts: Sequence[str] = ()


@dataclass(frozen=True)
class WalPosition:
    """The position of a reader."""

    system: str
    lsn: int | None = None
    """All transactions that committed before it are read; None until the slot exists."""
    tables: Mapping[str, int] = field(default_factory=dict)
    """The OID of each table whose snapshot is complete."""
    within: tuple[int, int] | None = None
    """How many changes of a transaction are read, by its commit position."""

    @property
    def position(self) -> Position:
        position: dict[str, Any] = {
            "system": self.system,
            "lsn": None if self.lsn is None else lsn_text(self.lsn),
            "tables": dict(self.tables),
        }
        if self.within is not None:
            position["within"] = [lsn_text(self.within[0]), self.within[1]]
        return position

    @classmethod
    def of(cls, position: Position) -> WalPosition:
        lsn, within = position["lsn"], position.get("within")
        return cls(
            position["system"],
            None if lsn is None else lsn_number(lsn),
            position["tables"],
            None if within is None else (lsn_number(within[0]), within[1]),
        )


class PostgresReader(TableReader):
    """The tables of one slot."""

    def __init__(
        self,
        server: TableServer,
        wanted: Mapping[str, FollowedTable],
        shapes: Mapping[str, TableShape],
        slot: str,
        publication: str | None,
        after: Position | None,
    ) -> None:
        self._server = server
        self._wanted = wanted
        self._shapes = dict(shapes)
        self._slot = slot
        self._publication = publication
        self._place = WalPosition.of(after) if after is not None else None
        self._confirmed = self._place.lsn if self._place is not None else None
        self._is_announced = self._is_known = after is not None
        """Whether the position is durable that names the slot as ours and the complete tables."""
        self._moved = time.monotonic()
        self._side: Connection | None = None
        self._is_published = False
        self._tables: dict[str, catalog.PgTable] = {}
        self._export: Export | None = None
        self._snapshot: TableSnapshot | None = None
        self._rows: Iterator[CapturedBatch] | None = None
        self._stream: ReplicationStream | None = None
        self._transactions: Transactions | None = None

    def read(self, seconds: float) -> CapturedBatch | None:
        """The next rows of a snapshot, or the next changes."""
        until = time.monotonic() + seconds
        with explained(self._server.label):
            if not self._tables:
                self._prepare()
            if not self._is_known:
                return self._announce()
            if not self._is_published:
                self._publish()
            if self._pending and self._snapshot is None and not self._begin_snapshot(until):
                return None
            if self._snapshot is None:
                return self._changes(until, None)
            if self._rows is None and not self._is_reached(self._snapshot.lsn):
                return self._changes(until, self._snapshot.lsn)
            return self._next_rows(self._snapshot)

    def confirm(self, position: Position) -> None:
        self._is_known, lsn = True, position["lsn"]
        if lsn is None:
            return
        self._confirmed = lsn_number(lsn)
        if self._stream is not None:
            with explained(self._server.label):
                self._stream.confirm(self._confirmed)

    def lag(self) -> int | None:
        """Bytes of WAL that are not read yet, or not returned yet."""
        if self._side is None or self._place is None or self._place.lsn is None:
            return None
        transactions = self._transactions
        reached = (
            self._place.lsn
            if transactions is None or transactions.whole
            else max(self._place.lsn, transactions.reached)
        )
        with suppress(psycopg.Error):
            question = "SELECT (pg_current_wal_flush_lsn() - %s::pg_lsn)::int8"
            row = self._side.execute(question, (lsn_text(reached),)).fetchone()
            return max(0, row[0]) if row is not None else None
        return None

    def close(self) -> None:
        for connection in (self._stream, self._snapshot, self._export, self._side):
            if connection is not None:
                connection.close()
        self._stream = self._snapshot = self._export = None

    @property
    def _pending(self) -> list[str]:
        """Tables whose snapshot is missing. A table that was dropped and created again counts as new."""
        known = self._place.tables if self._place is not None else {}
        return [name for name, table in self._tables.items() if known.get(name) != table.number]

    def _prepare(self) -> None:
        """Read the catalogue, and check that it still matches the position."""
        side = self._side = self._server.connect()
        self._types = catalog.types_of(side)
        tables = {}
        for name, followed in self._wanted.items():
            tables[name] = catalog.find_table(side, self._types, followed.table, followed.texts)
            catalog.require_key(tables[name], self._key(name, tables[name]))
        _refuse_twice(tables)
        slot, system = catalog.find_slot(side, self._slot), catalog.system_of(side)
        if self._place is None:
            self._refuse_foreign(slot)
            self._place = WalPosition(system)
        elif self._place.lsn is not None:
            self._require_slot(slot, system, self._place.lsn)
        elif slot is not None:
            side.execute("SELECT pg_drop_replication_slot(%s)", (self._slot,))
        kept = {name: number for name, number in self._place.tables.items() if name in tables}
        if kept != self._place.tables:
            self._place = replace(self._place, tables=kept)
            self._is_announced = self._is_known = False
        self._tables = tables

    def _announce(self) -> CapturedBatch | None:
        """Return the position before anything is created or changed on the server. After a crash a new slot is known
        to be ours then, and a table that left the publication does not count as complete when it returns."""
        if self._is_announced:
            return None
        assert self._place is not None
        self._is_announced = True
        return CapturedBatch(self._place.position)

    def _key(self, name: str, table: catalog.PgTable) -> tuple[str, ...]:
        known = self._shapes.get(name)
        return known.key if known is not None and known.key else table.key

    def _publish(self) -> None:
        """Publish the tables before the slot is created: the slot streams only what is published then."""
        assert self._side is not None
        tables = list(self._tables.values())
        if self._publication is not None:
            require_publication(self._side, self._publication, tables)
        else:
            pending = self._pending
            whole = [table for name, table in self._tables.items() if name not in pending]
            keep_publication(self._side, self._slot, tables, whole)
        self._is_published = True

    def _refuse_foreign(self, slot: catalog.Slot | None) -> None:
        if slot is not None:
            raise ProjectError(
                "slot-exists",
                f"{self._server.label} has a slot {self._slot} already, and nothing here has been read from it: it may "
                "be another project's",
                hint="write another `slot` under the tables; or, if no other process uses it, run: "
                f"SELECT pg_drop_replication_slot('{self._slot}')",
            )

    def _require_slot(self, slot: catalog.Slot | None, system: str, lsn: int) -> None:
        """Refuse to continue where changes would be missing."""
        assert self._place is not None
        if system != self._place.system:
            raise self._lost("this is another server than the one that was read so far")
        if slot is None or slot.confirmed is None:
            raise self._lost(f"slot {self._slot} is gone")
        if slot.lost:
            raise self._lost(f"slot {self._slot} was too far behind: the server threw away what it had not sent")
        if lsn_number(slot.confirmed) > lsn:
            raise self._lost(f"slot {self._slot} is at {slot.confirmed}, and only {lsn_text(lsn)} is taken here")

    def _lost(self, why: str) -> ProjectError:
        return ProjectError(
            "slot-missing",
            f"{self._server.label}: {why}, so changes are missing",
            hint="write another `slot` under the tables: all their rows are then read again",
        )

    def _begin_snapshot(self, until: float) -> bool:
        """Let a slot export a snapshot and use it; False while the slot has to wait."""
        assert self._place is not None
        first = self._place.lsn is None
        if self._export is None:
            name = self._slot if first else f"headrace_{uuid.uuid4().hex}"
            self._export = Export(self._server.connect(replication=True), name, temporary=not first)
        exported = self._export.done(until)
        if exported is None:
            return False
        self._snapshot = TableSnapshot(self._server.connect(), exported[0])
        self._snapshot.take_over(exported[1])
        self._export.close()
        self._export = None
        for name in self._pending:
            self._snapshot.hold(self._server.label, self._tables[name])
        if not self._place.tables:  # no change precedes it
            self._place = replace(self._place, lsn=self._snapshot.lsn, within=None)
        return True

    def _is_reached(self, lsn: int) -> bool:
        assert self._place is not None
        assert self._place.lsn is not None
        return self._place.lsn >= lsn

    def _next_rows(self, snapshot: TableSnapshot) -> CapturedBatch:
        """Rows of the snapshot. The stream starts after the last of them."""
        self._close_stream()
        if self._rows is None:
            self._rows = self._all_rows(snapshot)
        rows = next(self._rows)
        if not self._pending:
            snapshot.close()
            self._snapshot = self._rows = None
        return rows

    def _all_rows(self, snapshot: TableSnapshot) -> Iterator[CapturedBatch]:
        for name in self._pending:
            assert self._place is not None
            table = catalog.find_table(
                snapshot.connection, self._types, self._wanted[name].table, self._wanted[name].texts
            )
            shape = snapshot_shape(name, table, self._shapes.get(name), self._key(name, table))
            self._shapes[name] = shape
            begun, shapes = frozenset({name}), {name: shape}
            waiting: pa.Table | None = None
            for chunk in snapshot.chunks(name, table, shape):
                if waiting is not None:
                    yield CapturedBatch(self._place.position, rows={name: waiting}, begins=begun, shapes=shapes)
                    begun, shapes = frozenset(), {}
                waiting = chunk
            assert waiting is not None
            self._place = replace(self._place, tables={**self._place.tables, name: table.number})
            position = self._place.position
            yield CapturedBatch(position, rows={name: waiting}, begins=begun, ends=frozenset({name}), shapes=shapes)

    def _changes(self, until: float, stop: int | None) -> CapturedBatch | None:
        """Changes of the stream, up to a position if one is given."""
        if self._stream is None:
            self._open_stream()
        stream, transactions = self._stream, self._transactions
        assert stream is not None
        assert transactions is not None
        while len(transactions.whole.changes) < LIMIT and len(transactions.open.changes) < LIMIT:
            data = stream.message()
            if data is not None:
                transactions.feed(data)
                if stop is not None and transactions.final is not None and transactions.final >= stop:
                    return self._stopped(transactions, stop)
                continue
            if transactions.final is None:
                transactions.reached = max(transactions.reached, stream.server_at)
                if stop is not None and transactions.reached >= stop:
                    return self._stopped(transactions, stop)
            left = until - time.monotonic()
            if transactions.whole or left <= 0:
                break
            stream.wait(left)
        return self._told(transactions)

    def _told(self, transactions: Transactions) -> CapturedBatch | None:
        assert self._place is not None
        assert self._place.lsn is not None
        if transactions.whole:
            return self._taken(transactions.take(), transactions.reached)
        if len(transactions.open.changes) >= LIMIT:
            assert transactions.final is not None
            place = replace(self._place, within=(transactions.final, transactions.count))
            return self._taken(transactions.take_open(), self._place.lsn, place)
        if transactions.reached > self._place.lsn and self._is_move_due():
            self._require_tables()
            return self._taken(Portion(), transactions.reached)
        return None

    def _is_move_due(self) -> bool:
        requested = self._stream is not None and self._stream.is_asked
        return requested or time.monotonic() - self._moved >= _MOVE_SECONDS

    def _require_tables(self) -> None:
        """A dropped table sends no change, and a table created in its place is not published."""
        assert self._side is not None
        if not catalog.are_there(self._side, [table.number for table in self._tables.values()]):
            raise service_unavailable(self._server.label, "a table was dropped")

    def _stopped(self, transactions: Transactions, stop: int) -> CapturedBatch:
        """All changes before the position of a snapshot."""
        return self._taken(transactions.take(), stop)

    def _taken(self, portion: Portion, lsn: int, place: WalPosition | None = None) -> CapturedBatch:
        assert self._place is not None
        self._place = place if place is not None else replace(self._place, lsn=lsn, within=None)
        self._moved = time.monotonic()
        emptied = frozenset(portion.emptied)
        self._shapes |= portion.shapes
        return CapturedBatch(
            self._place.position, portion.changes, begins=emptied, ends=emptied, shapes=portion.shapes, at=portion.at
        )

    def _open_stream(self) -> None:
        assert self._place is not None
        assert self._place.lsn is not None
        publication = self._publication or self._slot
        self._stream = ReplicationStream(
            self._server.connect(replication=True), self._server.label, self._confirmed or 0
        )
        self._stream.start(self._slot, publication, self._place.lsn)
        followed = {
            self._tables[name].number: Followed(name, self._shapes.get(name) or self._tables[name].shape)
            for name in self._place.tables
        }
        self._transactions = Transactions(followed, self._typed, self._place.within)
        self._transactions.reached = self._place.lsn

    def _close_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = self._transactions = None

    def _typed(self, name: str, number: int, sent: Sequence[SentColumn]) -> list[PgType]:
        """The types of columns that the stream describes. It does not contain the dimensions of arrays."""
        assert self._side is not None
        texts, dimensions = self._wanted[name].texts, catalog.dimensions(self._side, number)
        self._types.know([column.type for column in sent])
        return [
            TEXT if one.name in texts else self._types.of(one.type, one.modifier, dimensions.get(one.name, 1))
            for one in sent
        ]


def _refuse_twice(tables: Mapping[str, catalog.PgTable]) -> None:
    names: dict[int, str] = {}
    for name, table in tables.items():
        if table.number in names:
            raise ProjectError(
                "duplicate-name",
                f"tables '{names[table.number]}' and '{name}' are both {table.shown} with the same slot",
                hint="keep one of them, or give one a `slot` of its own",
            )
        names[table.number] = name
