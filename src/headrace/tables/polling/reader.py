"""Polls the tables of one database.

A position is, by table, `{"cursor": …, "column": "updated_at"}`, or `{}` for one whose rows are all read each time;
`{"first": true}` while a table with a cursor is read for the first time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from headrace.core.context import Context
from headrace.core.encoding.json_values import Convert, UnfitValueError, as_text, converter
from headrace.core.errors import ProjectError
from headrace.core.positions import Position
from headrace.core.tables import CapturedBatch, RowChange, TableReader, TableShape
from headrace.tables.polling.database import PAGE, Row, value_unfit

if TYPE_CHECKING:
    from headrace.tables.polling import PollingTable
    from headrace.tables.polling.database import Database


@dataclass
class _Polled:
    """One table: its query, and its position."""

    name: str
    source: PollingTable
    shape: TableShape
    selected: list[str]
    """Its existing columns; others are null."""
    first: bool
    """Whether all rows must be read, for a new table or new columns."""
    grown: bool
    last: Any = None
    """The greatest cursor, as the database returns it."""
    due: float = 0.0
    digest: int | None = None
    """The digest of all rows at the last poll."""
    window: deque[tuple[Any, int]] = field(default_factory=deque)
    """Cursor and digest of the rows that the next poll reads again."""

    def position(self) -> dict[str, Any]:
        """The position after what was read."""
        if self.source.cursor is None:
            return {}
        if self.first:
            return {"first": True}
        cursor = self.last if isinstance(self.last, int | float | None) else as_text(self.last)
        return {"cursor": cursor, "column": self.source.cursor}

    def remember(self, cursor: Any, digest: int) -> None:
        """Store the digests of rows that the next poll reads again; rows come in the order of the cursor."""
        self.last = cursor
        self.window.append((cursor, digest))
        begin = _back(self, cursor)
        # Python and the database may order texts differently, but agree on equality
        while len(self.window) > 1 and (
            self.window[0][0] < begin if self.source.lookback is not None else self.window[0][0] != begin
        ):
            self.window.popleft()


class PollingReader(TableReader):
    """One connection. A poll is one transaction over all tables that are due."""

    def __init__(
        self,
        tables: Mapping[str, PollingTable],
        shapes: Mapping[str, TableShape],
        after: Position | None,
        context: Context,
    ) -> None:
        self._database: Database = next(iter(tables.values())).connect(context)
        try:
            self._tables = [
                self._polled(name, table, shapes[name], (after or {}).get(name)) for name, table in tables.items()
            ]
        except BaseException:
            self._database.close()
            raise
        self._poll: Iterator[CapturedBatch] | None = None

    def _polled(self, name: str, source: PollingTable, shape: TableShape, known: Any) -> _Polled:
        now = source.shape_in(self._database).columns
        new = [column for column in now if column.name not in shape.columns.names]
        whole = TableShape(pa.schema([*shape.columns, *new]), shape.key)
        selected = [column for column in whole.columns.names if column in now.names]
        at = (known or {}).get("cursor")
        first = bool(new) or at is None or known.get("column") != source.cursor
        table = _Polled(name, source, whole, selected, first, grown=bool(new))
        if not first and source.cursor is not None:
            table.last = self._database.value(whole.columns.field(source.cursor).type, at)
        _require_lookback(table)
        return table

    def read(self, seconds: float) -> CapturedBatch | None:
        """The rows of the next poll, page by page."""
        until = time.monotonic() + seconds
        while True:
            if self._poll is None:
                begin = min(table.due for table in self._tables)
                # nothing to wait on but the time
                time.sleep(max(0.0, min(begin, until) - time.monotonic()))
                now = time.monotonic()
                if now < begin:
                    return None
                self._poll = self._polling([table for table in self._tables if table.due <= now])
            batch = next(self._poll, None)
            if batch is not None:
                return batch
            self._poll = None

    def confirm(self, position: Position) -> None:
        """Nothing to confirm to the database."""

    def close(self) -> None:
        """End a poll in progress, and disconnect."""
        if self._poll is not None:
            self._poll.close()  # type: ignore[attr-defined]  # it is a generator
            self._poll = None
        self._database.close()

    def _polling(self, due: list[_Polled]) -> Iterator[CapturedBatch]:
        batch = _Batch()
        with self._database.snapshot():
            for table in due:
                if self._may_differ(table):
                    all_rows = table.first or table.source.cursor is None
                    batch.begin(table, all_rows)
                    for page in self._asked(table):
                        batch.add(table, page)
                        if batch.rows >= PAGE:
                            yield batch.taken(self._tables)
                            batch = _Batch()
                    if all_rows:
                        batch.ends.add(table.name)
                    table.first = False
                table.due = time.monotonic() + table.source.every.total_seconds()
        if batch.says_something:
            yield batch.taken(self._tables)

    def _may_differ(self, table: _Polled) -> bool:
        """Whether a table without a cursor has changed since the last poll: only then are its rows applied."""
        if table.source.cursor is not None or table.digest is None:
            return True
        digest = sum(_digest(row) for page in self._database.pages(*self._question(table)) for row in page)
        return digest != table.digest

    def _asked(self, table: _Polled) -> Iterator[list[Row]]:
        cursor = table.source.cursor
        if cursor is None:
            table.digest = 0
            for page in self._database.pages(*self._question(table)):
                table.digest += sum(map(_digest, page))
                yield page
            return
        place = table.selected.index(cursor)
        known = {digest for _, digest in table.window}
        table.window.clear()  # a row may have returned to its value before the last poll
        for page in self._database.pages(*self._question(table)):
            new: list[Row] = []
            for row in page:
                if row[place] is None:
                    raise _null_cursor(table)
                digest = _digest(row)
                table.remember(row[place], digest)
                if digest not in known:
                    new.append(row)
            yield new

    def _question(self, table: _Polled) -> tuple[str, list[Any]]:
        quoted, cursor = self._database.quoted, table.source.cursor
        names = ", ".join(quoted(name) for name in table.selected)
        statement = f"SELECT {names} FROM {self._database.relation(table.source)}"
        if cursor is None:
            return statement, []
        if table.first or table.last is None:
            return f"{statement} ORDER BY {quoted(cursor)}", []
        # rows with a null cursor would never be read: they are selected, to be refused
        where = f"WHERE {quoted(cursor)} >= {self._database.mark} OR {quoted(cursor)} IS NULL"
        return f"{statement} {where} ORDER BY {quoted(cursor)}", [_back(table, table.last)]


class _Batch:
    """The changes of one step."""

    def __init__(self) -> None:
        self.rows = 0
        self.begins: set[str] = set()
        self.ends: set[str] = set()
        self.shapes: dict[str, TableShape] = {}
        self._rows: dict[str, list[pa.Table]] = {}
        self._changes: list[RowChange] = []

    @property
    def says_something(self) -> bool:
        """Whether it has any change."""
        return bool(self.rows or self.ends)

    def begin(self, table: _Polled, all_rows: bool) -> None:
        if table.grown:
            self.shapes[table.name] = table.shape
            table.grown = False
        if all_rows:
            self.begins.add(table.name)

    def add(self, table: _Polled, page: list[Row]) -> None:
        """Add rows; those that are marked as deleted are deletes."""
        deleted = table.source.deleted
        if deleted is not None:
            place = table.selected.index(deleted)
            gone = [row for row in page if _marks(row[place])]
            page = [row for row in page if not _marks(row[place])]
            keys = TableShape(pa.schema([table.shape.columns.field(name) for name in table.shape.key]))
            for row in _arrow(table, keys, gone).to_pylist():
                self._changes.append(RowChange(table.name, None, tuple(row.values())))
            self.rows += len(gone)
        if page:
            self._rows.setdefault(table.name, []).append(_arrow(table, table.shape, page))
            self.rows += len(page)

    def taken(self, tables: list[_Polled]) -> CapturedBatch:
        """The changes, with the position of every table."""
        return CapturedBatch(
            position={table.name: table.position() for table in tables},
            changes=self._changes,
            rows={name: pa.concat_tables(parts) for name, parts in self._rows.items()},
            begins=frozenset(self.begins),
            ends=frozenset(self.ends),
            shapes=self.shapes,
        )


def _arrow(table: _Polled, shape: TableShape, rows: list[Row]) -> pa.Table:
    columns = []
    for column in shape.columns:
        if column.name not in table.selected:
            columns.append(pa.nulls(len(rows), column.type))
            continue
        place, convert = table.selected.index(column.name), _converter(column.type)
        try:
            columns.append(pa.array([convert(row[place]) for row in rows], column.type))
        except (UnfitValueError, pa.ArrowInvalid, OverflowError) as error:
            reason = f"column '{column.name}' is {column.type}: {error}"
            raise value_unfit(table.source.label, reason) from error
    return pa.Table.from_arrays(columns, schema=shape.columns)


def _converter(kind: pa.DataType) -> Convert:
    convert = converter(kind)
    if pa.types.is_boolean(kind):  # SQLite and MySQL have numbers for them
        return lambda value: bool(value) if isinstance(value, int) and value in (0, 1) else convert(value)
    return lambda value: _clock(value) if isinstance(value, timedelta) else convert(value)


def _clock(value: timedelta) -> str:
    """A time of day, which may be negative or longer than a day in MySQL."""
    seconds, rest = divmod(abs(value) // timedelta(microseconds=1), 1_000_000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{'-' if value < timedelta(0) else ''}{clock}{f'.{rest:06}' if rest else ''}"


def _marks(value: Any) -> bool:
    """Whether a value marks a row as deleted."""
    if isinstance(value, bytes):  # bits of MySQL
        return any(value)
    return bool(value) if isinstance(value, int | float | Decimal | None) else True


def _digest(row: Row) -> int:
    return hash(repr(row))


def _back(table: _Polled, cursor: Any) -> Any:
    """Where the next poll begins, given the greatest cursor."""
    lookback = table.source.lookback
    if lookback is None:
        return cursor
    if isinstance(cursor, str):  # a time of SQLite
        begin = datetime.fromisoformat(cursor) - cast(timedelta, lookback)
        # cut to the same length, it is never later than the exact time
        return begin.isoformat("T" if "T" in cursor else " ")[: len(cursor)]
    return cursor - lookback


def _require_lookback(table: _Polled) -> None:
    lookback, cursor = table.source.lookback, table.source.cursor
    if lookback is None or cursor is None:
        return
    kind = table.shape.columns.field(cursor).type
    fits = pa.types.is_temporal(kind) if isinstance(lookback, timedelta) else not pa.types.is_temporal(kind)
    if not fits or pa.types.is_string(kind):
        expected = "a duration, such as 1min" if pa.types.is_temporal(kind) else "a number"
        raise ProjectError(
            "polling-lookback",
            f"{table.source.label}: `lookback` does not fit the cursor '{cursor}', which is {kind}",
            hint=f"write {expected}" if not pa.types.is_string(kind) else "declare the cursor as a time or a number",
        )


def _null_cursor(table: _Polled) -> ProjectError:
    return ProjectError(
        "polling-cursor-null",
        f"{table.source.label}: a row has no '{table.source.cursor}', so its changes would never be seen",
        hint="make the column NOT NULL, leave such rows out by a `query`, or poll without a `cursor`",
    )
