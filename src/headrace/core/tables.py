"""The contract of tables: keyed rows that change. A source tells what changes; Headrace keeps a copy and a log of it.

What a source says may be incomplete (only the key of a deleted row, a column that did not change) or come twice. The
copy of the table makes it whole: the log gets, for every change, the row as it was (weight -1) and as it is (+1).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, ClassVar, Final

import pyarrow as pa

from headrace.core.component import Component
from headrace.core.context import Context
from headrace.core.positions import Position

WEIGHT = "__weight"
"""The column of weighted rows: how often a row came to be (1) or ceased to be (-1)."""


@dataclass(frozen=True)
class TableShape:
    """The columns of a table, and those that identify a row. A table that is captured has a key."""

    columns: pa.Schema
    key: tuple[str, ...] = ()

    @property
    def weighted(self) -> pa.Schema:
        """Its rows in a log."""
        return self.columns.append(pa.field(WEIGHT, pa.int64()))


class _Unchanged(Enum):
    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = _Unchanged.UNCHANGED
"""Stands in a row for a value that the source did not send because it is what it was."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """What one change leaves behind: the row that is there now, or none.

    `row` has a value for every column of the table, as Python values of its Arrow types. `before` is the key that the
    row had, where the change was a delete (then `row` is None) or changed the key; otherwise None.
    """

    table: str
    row: Sequence[Any] | None
    before: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class CapturedBatch:
    """What a reader took from its source in one go; it is made durable in one step, for all tables together.

    In order: `shapes`, `begins`, `rows`, `changes`, `ends`. Whole transactions of the source, where it has any.
    """

    position: Position
    """Where to go on after it. With the first one after a snapshot began, and until it ends, the source says so itself
    in the position, so that a new reader begins the snapshot again."""
    changes: Sequence[RowChange] = ()
    rows: Mapping[str, pa.Table] = field(default_factory=dict)
    """Many rows that are there now, by table: quicker than changes. With the columns of the table, no weight."""
    begins: frozenset[str] = frozenset()
    """Tables of which all rows will come now."""
    ends: frozenset[str] = frozenset()
    """Tables of which all rows have come since they began: those that did not come are there no more."""
    shapes: Mapping[str, TableShape] = field(default_factory=dict)
    """Tables that have other columns from here on: more than before, never fewer; the new ones at the end."""
    at: datetime | None = None
    """When the newest of it happened at the source, if it says so."""


class TableReader(ABC):
    """Follows the tables of one group. Used by one thread. Raises ProjectError; an `exit_code` of Exit.TRANSIENT says
    that it may be tried again with a new reader."""

    @abstractmethod
    def read(self, seconds: float) -> CapturedBatch | None:
        """The next changes, waiting for them up to so long; None when there are none. Bounded in size."""

    @abstractmethod
    def confirm(self, position: Position) -> None:
        """All up to this position is durable: the source may forget it."""

    def lag(self) -> int | None:
        """How far behind the source's end it is, in the source's own unit (bytes of WAL, records); None: not known."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Let go of everything it holds open. Twice is as good as once."""


class TableSource(Component):
    """Where a table's rows come from: a snapshot, then changes. The model's fields are the keys under `source:`.

    Tables of one `group` are read by one reader and change together in the log, so that a view over two of them never
    sees half a transaction.
    """

    family: ClassVar[str] = "tables"

    @property
    @abstractmethod
    def group(self) -> str:
        """What it is read with: a database and slot, a set of topics. Never contains a secret."""

    @property
    def declared(self) -> TableShape | None:
        """The columns and the key as the options say; None when only the system behind it knows."""
        return None

    def check(self, context: Context) -> None:
        """Ask the system behind this source whether it can be read; a ProjectError says what to mend."""

    @abstractmethod
    def shape(self, context: Context) -> TableShape:
        """The columns and the key, as options or the system behind it say. May connect."""

    @classmethod
    @abstractmethod
    def reader(
        cls,
        tables: Mapping[str, TableSource],
        shapes: Mapping[str, TableShape],
        after: Position | None,
        context: Context,
    ) -> TableReader:
        """A reader of the tables of one group, all of this kind, by their names in the project. It goes on `after` a
        position that is durable, or begins anew with None. A table that the position does not know is new: its rows
        have to come first. `shapes` are those that the log has."""
