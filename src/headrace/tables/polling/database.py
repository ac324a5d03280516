"""What is asked of an SQL database that is polled. One subclass for each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from headrace.core.encoding.json_values import converter
from headrace.core.errors import Exit, ProjectError, did_you_mean

if TYPE_CHECKING:
    from headrace.tables.polling import PollingTable

PAGE = 10_000
Row = Sequence[Any]


class Database(ABC):
    """A connection. Errors of the database are raised as ProjectErrors."""

    mark: ClassVar[str] = "%s"
    """Where a parameter goes."""
    quote: ClassVar[str] = '"'

    @abstractmethod
    def describe(self, table: PollingTable) -> list[tuple[str, pa.DataType | None]]:
        """The columns; None for a type that the database does not tell."""

    @abstractmethod
    def primary_key(self, table: str) -> tuple[str, ...]:
        """The columns of a table's primary key."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[None]:
        """All that is asked inside is answered as of one moment."""

    @abstractmethod
    def pages(self, statement: str, parameters: Sequence[Any]) -> Iterator[list[Row]]:
        """The rows of a statement, never more than a page of them in memory."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection. Idempotent."""

    def value(self, kind: pa.DataType, said: Any) -> Any:
        """A value of a column again, as the database compares it, from what JSON has of it."""
        return converter(kind)(said)

    def columns(self, table: PollingTable, declared: pa.Schema | None) -> pa.Schema:
        """The columns to read: those that are declared, which must be there, or all."""
        described = dict(self.describe(table))
        if declared is not None:
            for name in declared.names:
                if name not in described:
                    hint = did_you_mean(name, described, "columns")
                    raise ProjectError("unknown-column", f"{table.label} has no column '{name}'", hint=hint)
            return declared
        untold = [name for name, kind in described.items() if kind is None]
        if untold:
            raise ProjectError(
                "table-columns-unknown",
                f"{table.label}: the database does not tell the types of {', '.join(untold)}",
                hint="declare them: columns: id bigint, status string",
            )
        return pa.schema(list(described.items()))

    def quoted(self, name: str) -> str:
        """A name as the database takes it whatever is in it."""
        inside = name.replace(self.quote, self.quote * 2)
        return self.literal(f"{self.quote}{inside}{self.quote}")

    def literal(self, text: str) -> str:
        """A part of a statement in which nothing is a parameter."""
        return text.replace("%", "%%") if self.mark == "%s" else text

    def relation(self, table: PollingTable) -> str:
        """The text after FROM."""
        if table.query is not None:
            return f"(\n{self.literal(table.query.strip().rstrip(';'))}\n) AS polled"
        return ".".join(self.quoted(part) for part in str(table.table).split("."))


def missing(label: str, reason: str) -> ProjectError:
    """The error for a missing table, column or database, or an invalid query."""
    return ProjectError(
        "polling-missing",
        f"{label}: {reason}",
        hint="fix `table`, `query` or `columns`, or create it",
        exit_code=Exit.NOT_FOUND,
    )


def value_unfit(label: str, reason: str) -> ProjectError:
    """The error for a value that its column cannot hold."""
    return ProjectError(
        "table-value",
        f"{label}: {reason}",
        hint="declare `columns` with a type that holds all values, fix the row, or convert it in a `query`",
    )
