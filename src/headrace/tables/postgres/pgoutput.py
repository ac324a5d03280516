"""Parses the messages of PostgreSQL's output plugin `pgoutput` (version 1 of its protocol, values as texts).

A transaction is returned as a whole, unless it is larger than a batch may be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from struct import Struct
from typing import Any

import pyarrow as pa

from headrace.core.errors import ProjectError
from headrace.core.tables import UNCHANGED, RowChange, TableShape
from headrace.tables.postgres.types import PgType

LIMIT = 10_000
"""The number of changes that are returned together, as near as whole transactions allow."""
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_BEGIN = Struct(">xQqI")
_COMMIT = Struct(">xBQQq")
_COLUMN = Struct(">Ii")
_TEXT, _NULL = ord("t"), ord("n")
_NEW = ord("N")


@dataclass(frozen=True)
class SentColumn:
    """A column as the stream describes it."""

    name: str
    type: int
    modifier: int
    identifies: bool
    """Whether it is sent for every row that is changed or deleted."""


Typed = Callable[[str, int, Sequence[SentColumn]], Sequence[PgType]]
"""The types of the columns of a table, given its name, its oid and the columns of the stream."""


@dataclass
class Followed:
    """A captured table, as the stream describes it now."""

    name: str
    shape: TableShape
    parsers: list[Callable[[str], Any]] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    order: list[int | None] | None = None
    """The place of each column of the shape in the stream; None when they are the same."""
    key: list[int] = field(default_factory=list)
    """The places of the key in the stream."""

    def describe(self, sent: Sequence[SentColumn], kinds: Sequence[PgType]) -> int:
        """Apply a description in the stream; the number of new columns."""
        known = {column.name: column.type for column in self.shape.columns}
        for column, kind in zip(sent, kinds, strict=True):
            if column.name in known and known[column.name] != kind.arrow:
                raise changed_type(self.name, column.name, known[column.name], kind.arrow)
        added = [pa.field(c.name, k.arrow) for c, k in zip(sent, kinds, strict=True) if c.name not in known]
        self.shape = TableShape(pa.schema([*self.shape.columns, *added]), self.shape.key)
        self.columns = [column.name for column in sent]
        self.parsers = [kind.parse for kind in kinds]
        places = {name: place for place, name in enumerate(self.columns)}
        order = [places.get(name) for name in self.shape.columns.names]
        self.order = None if order == list(range(len(sent))) else order
        for name in self.shape.key:
            if name not in places or not sent[places[name]].identifies:
                raise key_gone(self.name, name)
        self.key = [places[name] for name in self.shape.key]
        return len(added)


def changed_type(table: str, column: str, was: pa.DataType, now: pa.DataType) -> ProjectError:
    """The error for a column whose type has changed."""
    return ProjectError(
        "table-type-changed",
        f"column '{column}' of table '{table}' was {was} and is {now} now",
        hint="change it back; or give the table another name in the project: its rows are then read again",
    )


def key_gone(table: str, column: str) -> ProjectError:
    """The error for a key that no longer identifies rows."""
    return ProjectError(
        "table-identity",
        f"column '{column}' of the key of table '{table}' does not exist any more, or is not in its replica identity",
        hint="restore it, or give the table another name in the project: its rows are then read again",
    )


def bad_value(table: str, key: str, column: str, why: str) -> ProjectError:
    """The error for a value that the type of its column cannot hold."""
    return ProjectError(
        "table-value",
        f"table '{table}', row {key}, column '{column}': {why}",
        hint=f"change the row; or write `texts: [{column}]` under the table's source, in a table of another name",
    )


@dataclass
class Portion:
    """Changes in their order."""

    changes: list[RowChange] = field(default_factory=list)
    emptied: set[str] = field(default_factory=set)
    """Tables that were truncated before these changes."""
    shapes: dict[str, TableShape] = field(default_factory=dict)
    added: dict[str, int] = field(default_factory=dict)
    """The number of columns that were added."""
    at: datetime | None = None

    def __bool__(self) -> bool:
        return bool(self.changes or self.emptied or self.shapes)

    def empty(self, table: str) -> None:
        """Truncate a table: its earlier changes have no effect."""
        self.changes = [change for change in self.changes if change.table != table]
        self.emptied.add(table)

    def widen(self, table: str, columns: int) -> None:
        """Add nulls to earlier rows for new columns."""
        for change in self.changes:
            if change.table == table and change.row is not None:
                change.row.extend([None] * columns)  # type: ignore[attr-defined]

    def add(self, later: Portion) -> None:
        """Append later changes."""
        for table in later.emptied:
            self.empty(table)
        for table, columns in later.added.items():
            self.widen(table, columns)
            self.added[table] = self.added.get(table, 0) + columns
        self.changes += later.changes
        self.shapes |= later.shapes
        self.at = later.at


class Transactions:
    """Parses messages, and returns changes when their transaction has ended."""

    def __init__(self, tables: Mapping[int, Followed], typed: Typed, skip: tuple[int, int] | None = None) -> None:
        self._tables = tables
        self._typed = typed
        self._resume = skip
        """The transaction of which so many changes were returned before."""
        self._skip = 0
        self._read = {
            ord("B"): self._begin,
            ord("C"): self._commit,
            ord("R"): self._relation,
            ord("I"): self._insert,
            ord("U"): self._update,
            ord("D"): self._delete,
            ord("T"): self._truncate,
        }
        self.whole = Portion()
        self.open = Portion()
        self.final: int | None = None
        """The commit position of the current transaction; None between two."""
        self.count = 0
        """The number of its changes so far."""
        self.reached = 0
        """The end of the newest complete transaction."""

    def feed(self, data: bytes) -> None:
        """Parse one message. Messages about types, origins and logical messages have no changes."""
        read = self._read.get(data[0])
        if read is not None:
            read(data)

    def take(self) -> Portion:
        """All complete transactions since the last call."""
        portion, self.whole = self.whole, Portion()
        return portion

    def take_open(self) -> Portion:
        """The beginning of a transaction that is too large."""
        portion, self.open = self.open, Portion(at=self.open.at)
        return portion

    def _begin(self, data: bytes) -> None:
        final, clock, _ = _BEGIN.unpack_from(data)
        self.final, self.count = final, 0
        self._skip = self._resume[1] if self._resume is not None and self._resume[0] == final else 0
        self.open = Portion(at=_EPOCH + timedelta(microseconds=clock))

    def _commit(self, data: bytes) -> None:
        _, _, self.reached, _ = _COMMIT.unpack_from(data)
        if self.open:
            self.whole.add(self.open)
        self.open, self.final = Portion(), None

    def _relation(self, data: bytes) -> None:
        number = int.from_bytes(data[1:5], "big")
        table = self._tables.get(number)
        if table is None:
            return
        at = data.index(0, data.index(0, 5) + 1) + 2  # after schema, name and replica identity
        sent = []
        for _ in range(int.from_bytes(data[at : at + 2], "big")):
            end = data.index(0, at + 3)
            kind, modifier = _COLUMN.unpack_from(data, end + 1)
            sent.append(SentColumn(data[at + 3 : end].decode(), kind, modifier, bool(data[at + 2] & 1)))
            at = end + 1 + _COLUMN.size - 2
        added = table.describe(sent, self._typed(table.name, number, sent))
        if added:
            self.open.widen(table.name, added)
            self.open.added[table.name] = self.open.added.get(table.name, 0) + added
            self.open.shapes[table.name] = table.shape

    def _changed(self, data: bytes) -> Followed | None:
        """The table of a change, unless it is not captured, or the change was returned before."""
        self.count += 1
        return self._tables.get(int.from_bytes(data[1:5], "big")) if self.count > self._skip else None

    def _insert(self, data: bytes) -> None:
        table = self._changed(data)
        if table is not None:
            values, _ = _values(table, data, 6)
            self.open.changes.append(RowChange(table.name, _row(table, values)))

    def _update(self, data: bytes) -> None:
        table = self._changed(data)
        if table is None:
            return
        if data[5] == _NEW:
            values, _ = _values(table, data, 6)
            self.open.changes.append(RowChange(table.name, _row(table, values)))
            return
        old, at = _values(table, data, 6)
        values, _ = _values(table, data, at + 1)
        for place in table.key:
            if values[place] is UNCHANGED:
                values[place] = old[place]
        before, key = _key(table, old), _key(table, values)
        self.open.changes.append(RowChange(table.name, _row(table, values), before if before != key else None))

    def _delete(self, data: bytes) -> None:
        table = self._changed(data)
        if table is not None:
            old, _ = _values(table, data, 6)
            self.open.changes.append(RowChange(table.name, None, _key(table, old)))

    def _truncate(self, data: bytes) -> None:
        self.count += 1
        if self.count <= self._skip:
            return
        for place in range(int.from_bytes(data[1:5], "big")):
            table = self._tables.get(int.from_bytes(data[6 + 4 * place : 10 + 4 * place], "big"))
            if table is not None:
                self.open.empty(table.name)


def _values(table: Followed, data: bytes, at: int) -> tuple[list[Any], int]:
    """The values of one row, and where it ends."""
    at += 2
    values: list[Any] = []
    for parse in table.parsers:
        tag = data[at]
        at += 1
        if tag == _TEXT:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            text = data[at + 4 : end].decode()
            try:
                values.append(parse(text))
            except (ValueError, ArithmeticError) as error:
                key = ", ".join(str(values[place]) if place < len(values) else "…" for place in table.key)
                raise bad_value(table.name, f"({key})", table.columns[len(values)], f"{text[:60]}: {error}") from error
            at = end
        else:
            values.append(None if tag == _NULL else UNCHANGED)
    return values, at


def _row(table: Followed, values: list[Any]) -> list[Any]:
    if table.order is None:
        return values
    return [None if place is None else values[place] for place in table.order]


def _key(table: Followed, values: list[Any]) -> tuple[Any, ...]:
    return tuple([values[place] for place in table.key])
