"""The contract of table sources. A table is keyed rows that change; Headrace keeps a copy and a log of each table.

A source reports changes. They may be incomplete (only the key of a deleted row, no value for an unchanged column) or
repeated. The copy completes them: for every change the log gets the old row (weight -1) and the new row (weight +1).
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
"""The weight column: 1 for a row that is added, -1 for a row that is removed."""


@dataclass(frozen=True)
class TableShape:
    """The columns of a table and its key. A captured table always has a key."""

    columns: pa.Schema
    key: tuple[str, ...] = ()

    @property
    def weighted(self) -> pa.Schema:
        """The columns of the table in a log."""
        return self.columns.append(pa.field(WEIGHT, pa.int64()))


class _Unchanged(Enum):
    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = _Unchanged.UNCHANGED
"""The placeholder for a value that the source did not send because it did not change."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """One change: the new row, or None for a delete.

    `row` has a Python value, or UNCHANGED, for every column of the table. `before` is the old key, for a delete or a
    changed key; otherwise None.
    """

    table: str
    row: Sequence[Any] | None
    before: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class CapturedBatch:
    """The changes that a reader returns from one call. They become durable together, for all tables.

    The parts apply in the order `shapes`, `begins`, `rows`, `changes`, `ends`. A batch holds whole transactions, if
    the source has transactions.
    """

    position: Position
    """Where to resume after this batch. During a snapshot the source records this in the position, so that a new reader
    starts the snapshot again."""
    changes: Sequence[RowChange] = ()
    rows: Mapping[str, pa.Table] = field(default_factory=dict)
    """Current rows by table, with the columns of the table and no weight: faster than many changes."""
    begins: frozenset[str] = frozenset()
    """Tables whose snapshot begins with this batch."""
    ends: frozenset[str] = frozenset()
    """Tables whose snapshot ends with this batch. Rows that the snapshot did not contain are deleted."""
    shapes: Mapping[str, TableShape] = field(default_factory=dict)
    """Tables with a new schema from this batch on. Columns are only added, at the end."""
    at: datetime | None = None
    """When the newest change was made in the source; None when unknown."""


class TableReader(ABC):
    """Reads the tables of one table group. Used by one thread.

    Methods raise ProjectError. With an `exit_code` of Exit.TRANSIENT, Headrace tries again with a new reader.
    """

    @abstractmethod
    def read(self, seconds: float) -> CapturedBatch | None:
        """Return the next changes, or None when none arrive within `seconds`. The size of a batch is bounded."""

    @abstractmethod
    def confirm(self, position: Position) -> None:
        """Confirm that all changes up to this position are durable: the source may discard them."""

    def lag(self) -> int | None:
        """Return the distance to the end of the source in its own unit (bytes of WAL, records); None when unknown."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Release all resources. Idempotent."""


class TableSource(Component):
    """The source of a table: a snapshot, then changes. The fields of the model are the keys under `source:`.

    One reader reads all tables of one `group`. Their changes are committed to the log together, so a view over two of
    them never sees a partial transaction.
    """

    family: ClassVar[str] = "tables"

    @property
    @abstractmethod
    def group(self) -> str:
        """The table group, such as a database and slot, or a set of topics. It never contains a secret."""

    @property
    def declared(self) -> TableShape | None:
        """The columns and the key from the options; None when only the source system knows them."""
        return None

    def check(self, context: Context) -> None:
        """Check with the source system that the table can be read. Raises ProjectError."""

    @abstractmethod
    def shape(self, context: Context) -> TableShape:
        """Return the columns and the key, from the options or the source system. May connect."""

    @classmethod
    @abstractmethod
    def reader(
        cls,
        tables: Mapping[str, TableSource],
        shapes: Mapping[str, TableShape],
        after: Position | None,
        context: Context,
    ) -> TableReader:
        """Create a reader for the tables of one group, keyed by their names in the project. All are of this kind.

        The reader resumes `after` a durable position; None means a first start. A table that the position does not
        contain is new, and the reader returns its snapshot first. `shapes` are the current schemas in the log.
        """
