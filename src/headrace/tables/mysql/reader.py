"""Captures tables of one MySQL or MariaDB server: a snapshot of new tables, then the binlog from exactly there."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pymysql
from pymysqlreplication.constants import NONE_SOURCE
from pymysqlreplication.row_event import DeleteRowsEvent, WriteRowsEvent

from headrace.core.errors import Exit, ProjectError
from headrace.core.positions import Position
from headrace.core.tables import CapturedBatch, RowChange, TableReader, TableShape
from headrace.tables.mysql.binlog import Binlog, Statement, TableName, Transaction
from headrace.tables.mysql.server import BinlogPosition, Described, MyServer, Session, binlog_missing
from headrace.tables.mysql.types import Convert, MyColumn, quoted

_CHUNK, _MOST_CHANGES = 10_000, 20_000
_LAG_SECONDS = 5.0
# statements that may change rows without events
_REWRITES = ("PARTITION", "RENAME", "MODIFY", "CHANGE", "CONVERT", "DROP")


@dataclass(frozen=True)
class _FollowedMysqlTable:
    """A captured table: the columns of its log, and those of them that the server still has."""

    name: str
    place: TableName
    shape: TableShape
    columns: tuple[MyColumn, ...]

    @cached_property
    def _converters(self) -> list[tuple[str, Convert | None]]:
        converters = {column.name: column.convert() for column in self.columns}
        # a column that the server has dropped is null
        return [(name, converters.get(name, _nothing)) for name in self.shape.columns.names]

    def row(self, values: Mapping[str, Any]) -> list[Any]:
        row = []
        for name, convert in self._converters:
            value = values.get(name)
            row.append(value if value is None or convert is None else convert(value))
        return row

    def key(self, row: Sequence[Any]) -> tuple[Any, ...]:
        names = self.shape.columns.names
        return tuple(row[names.index(name)] for name in self.shape.key)

    @property
    def query(self) -> str:
        """Selects all rows, with the existing columns in the order of the log."""
        queries = {column.name: column.query for column in self.columns}
        listed = ", ".join(queries.get(name, "NULL") for name in self.shape.columns.names)
        return f"SELECT {listed} FROM {quoted(self.place[0])}.{quoted(self.place[1])}"

    def arrow(self, rows: Sequence[Sequence[Any]]) -> pa.Table:
        columns = []
        for field, (_, convert), values in zip(
            self.shape.columns, self._converters, zip(*rows, strict=True), strict=True
        ):
            converted = values if convert is None else [None if value is None else convert(value) for value in values]
            columns.append(pa.array(converted, field.type))
        return pa.Table.from_arrays(columns, schema=self.shape.columns)


class MyReader(TableReader):
    """A position is a place in the binlog, the complete tables, and where those continue whose snapshot is newer than
    that."""

    def __init__(
        self,
        server: MyServer,
        number: int,
        places: Mapping[str, TableName],
        shapes: Mapping[str, TableShape],
        after: Position | None,
    ) -> None:
        self._server, self._number = server, number
        self._places, self._shapes = dict(places), dict(shapes)
        position = after or {}
        self._identity: str = position.get("server", "")
        self._place = BinlogPosition.of(position["file"], position["offset"]) if after else None
        self._whole: set[str] = set(position.get("tables", ()))
        self._from = {name: BinlogPosition.of(*place) for name, place in position.get("from", {}).items()}
        self._tables: dict[str, _FollowedMysqlTable] = {}
        self._binlog: Binlog | None = None
        self._held: Transaction | None = None
        self._work: Iterator[CapturedBatch] = self._open()
        self._lag: tuple[float, int | None] = (0.0, None)

    def read(self, seconds: float) -> CapturedBatch | None:
        """The next rows of a snapshot, else of the binlog."""
        return next(self._work, None) or self._streamed(seconds)

    def confirm(self, position: Position) -> None:
        """Nothing: the server purges the binlog itself."""

    def lag(self) -> int | None:
        """Bytes of the binlog."""
        at, lag = self._lag
        if self._place is not None and time.monotonic() - at > _LAG_SECONDS:
            with self._server.session() as session:
                later = [size - 4 for place, size in session.logs() if place.number > self._place.number]
                own = [size for place, size in session.logs() if place.number == self._place.number]
            lag = sum(later) + sum(size - self._place.offset for size in own)
            self._lag = (time.monotonic(), lag)
        return lag

    def close(self) -> None:
        self._work = iter(())
        if self._binlog is not None:
            self._binlog.close()

    # --- start and snapshots

    def _open(self) -> Iterator[CapturedBatch]:
        with self._server.session() as session:
            session.check(self._server.address)
            self._check_server(session)
            for name, place in self._places.items():
                self._tables[name] = self._followed(name, self._described(session, place))
        missing = [name for name in self._places if name not in self._whole]
        if missing:
            yield from self._snapshot(missing)

    def _check_server(self, session: Session) -> None:
        identity = session.identity()
        if self._identity and identity != self._identity:
            raise ProjectError(
                "binlog-other-server",
                f"{self._server.address} is not the server that was captured so far ({self._identity})",
                hint="its binlog has other positions: remove the table's log to start with a new snapshot",
                exit_code=Exit.CONFLICT,
            )
        self._identity = identity
        place = self._place
        if place is not None and place.file not in {log.file for log, _ in session.logs()}:
            raise binlog_missing(self._server.address, f"there is no {place.file} any more")

    def _described(self, session: Session, place: TableName) -> Described:
        description = session.describe(*place)
        if description is None:
            raise ProjectError(
                "mysql-table-missing",
                f"there is no table '{place[1]}' in database '{place[0]}' of {self._server.address} any more",
                hint="create it again, or remove it from the project",
                exit_code=Exit.TRANSIENT,
            )
        return description

    def _followed(self, name: str, description: Described) -> _FollowedMysqlTable:
        """A table with the columns of its log; columns that were added since appear in the binlog."""
        shape = self._shapes.get(name)
        if shape is None or (name not in self._whole):
            shape = self._widened(name, description)
        self._shapes[name] = shape
        return _FollowedMysqlTable(name, self._places[name], shape, description.columns)

    def _widened(self, name: str, description: Described) -> TableShape:
        """The columns of the log, then the new ones."""
        known = self._shapes.get(name)
        if known is None:
            return description.shape
        for field in description.shape.columns:
            if field.name in known.columns.names and known.columns.field(field.name).type != field.type:
                raise _changed(name, f"column '{field.name}' was {known.columns.field(field.name).type}", field.type)
        if description.shape.key and description.shape.key != known.key:
            raise _changed(name, f"the key was {', '.join(known.key)}", ", ".join(description.shape.key))
        more = [field for field in description.shape.columns if field.name not in known.columns.names]
        return TableShape(pa.schema([*known.columns, *more]), known.key)

    def _snapshot(self, names: Sequence[str]) -> Iterator[CapturedBatch]:
        """All rows of these tables at one point in time."""
        with self._server.session(pymysql.cursors.SSCursor) as session:
            frozen = session.freeze()
            if self._place is None:
                self._place = frozen
            for name in names:
                table = self._tables[name]
                yield CapturedBatch(self._position(), begins=frozenset({name}), shapes={name: table.shape})
                for rows in session.chunks(table.query, _CHUNK):
                    yield CapturedBatch(self._position(), rows={name: table.arrow(rows)})
        # after the session, which locks the definitions of the tables
        self._whole |= set(names)
        self._from |= {name: frozen for name in names if frozen > self._place}
        yield CapturedBatch(self._position(), ends=frozenset(names))

    # --- the binlog

    def _streamed(self, seconds: float) -> CapturedBatch | None:
        assert self._place is not None, "a snapshot comes first"
        if self._binlog is None:
            self._binlog = Binlog(self._server, self._number, self._places.values(), self._place)
        began, changes, at = self._place, list[RowChange](), None
        transaction = self._held or self._binlog.next(seconds)
        self._held = None
        while transaction is not None:
            if transaction.statement is not None:
                if began != self._place:
                    self._held = transaction  # earlier changes come first
                    break
                return self._follow(transaction, transaction.statement)
            changes += self._changes(transaction)
            self._pass(transaction.place)
            at = transaction.at if changes else None
            if len(changes) >= _MOST_CHANGES:
                break
            transaction = self._binlog.next(0)
        return None if began == self._place else CapturedBatch(self._position(), changes, at=at)

    def _changes(self, transaction: Transaction) -> Iterator[RowChange]:
        names = {table.place: table for table in self._tables.values()}
        for event in transaction.events:
            table = names[event.schema, event.table]
            if not self._is_in_snapshot(table.name, transaction.place):
                yield from _changed_rows(table, event, self._server)

    def _is_in_snapshot(self, name: str, place: BinlogPosition) -> bool:
        return name in self._from and place <= self._from[name]

    def _pass(self, place: BinlogPosition) -> None:
        self._place = place
        self._from = {name: start for name, start in self._from.items() if start > place}

    def _follow(self, transaction: Transaction, statement: Statement) -> CapturedBatch:
        """Handle a DDL statement that may concern a table."""
        touched = [
            name
            for name, place in self._places.items()
            if statement.names(place) and not self._is_in_snapshot(name, transaction.place)
        ]
        self._pass(transaction.place)
        if statement.verb == "TRUNCATE":
            return CapturedBatch(
                self._position(), begins=frozenset(touched), ends=frozenset(touched), at=transaction.at
            )
        shapes, again = {}, []
        with self._server.session() as session:
            for name in touched:
                description, known = self._described(session, self._places[name]), self._tables[name]
                widened = self._widened(name, description)
                self._shapes[name] = widened
                self._tables[name] = _FollowedMysqlTable(name, known.place, widened, description.columns)
                if widened != known.shape:
                    shapes[name] = widened
                if _needs_snapshot(statement, description, known):
                    again.append(name)
        self._whole -= set(again)
        if again:
            self._work = self._snapshot(again)
        return CapturedBatch(self._position(), shapes=shapes, at=transaction.at)

    def _position(self) -> Position:
        assert self._place is not None
        position: dict[str, Any] = {
            "server": self._identity,
            "file": self._place.file,
            "offset": self._place.offset,
            "tables": sorted(self._whole),
        }
        if self._from:
            position["from"] = {name: [place.file, place.offset] for name, place in self._from.items()}
        return position


def _nothing(_value: Any) -> None:
    return None


def _needs_snapshot(statement: Statement, description: Described, known: _FollowedMysqlTable) -> bool:
    """Whether rows may have changed without events."""
    if statement.verb in ("CREATE", "DROP"):
        return statement.has("TABLE") and not statement.has("INDEX", "TRIGGER", "VIEW", "TEMPORARY")
    if statement.verb == "RENAME" or statement.has(*_REWRITES):
        return True
    added = [column for column in description.columns if column.name not in known.shape.columns.names]
    return not all(column.appears_empty for column in added)


def _changed_rows(table: _FollowedMysqlTable, event: Any, server: MyServer) -> Iterator[RowChange]:
    try:
        for row in event.rows:
            if isinstance(event, WriteRowsEvent):
                yield RowChange(table.name, table.row(_values(table, row, "values", "none_sources")))
            elif isinstance(event, DeleteRowsEvent):
                gone = table.row(_values(table, row, "values", "none_sources"))
                yield RowChange(table.name, None, table.key(gone))
            else:
                old = table.key(table.row(_values(table, row, "before_values", "before_none_sources")))
                new = table.row(_values(table, row, "after_values", "after_none_sources"))
                yield RowChange(table.name, new, None if old == table.key(new) else old)
    except (ValueError, LookupError) as error:
        raise ProjectError(
            "binlog-unreadable",
            f"a row of '{table.name}' in the binlog of {server.address} cannot be read: {error}",
            hint="binlog_row_image and binlog_row_metadata must be FULL in all sessions",
        ) from None


def _values(table: _FollowedMysqlTable, row: Mapping[str, Any], values: str, reasons: str) -> Mapping[str, Any]:
    """The values of a row by column, with those that the library leaves out."""
    by_name: dict[str, Any] = row[values]
    for name, reason in row[reasons].items():
        if reason == NONE_SOURCE.EMPTY_SET:
            by_name[name] = set()
        elif reason in (NONE_SOURCE.COLS_BITMAP, NONE_SOURCE.JSON_PARTIAL_UPDATE) and name in table.shape.columns.names:
            raise ValueError(f"the event has no '{name}'")
    if "UNKNOWN_COL0" in by_name:
        raise ValueError("the event does not name its columns")
    return by_name


def _changed(name: str, was: str, now: Any) -> ProjectError:
    return ProjectError(
        "mysql-column-changed",
        f"table '{name}' has changed: {was} and is now {now}",
        hint="views keep their rows: remove the table's log and reset its views to start over",
        exit_code=Exit.CONFLICT,
    )
