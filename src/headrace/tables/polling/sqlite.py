"""A file of SQLite."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.systems.services import service_unavailable
from headrace.tables.polling.database import PAGE, Database, Row, missing

if TYPE_CHECKING:
    from headrace.tables.polling import PollingTable

_DECIMAL = re.compile(r"(?:DECIMAL|NUMERIC)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
# by a substring of the declared type; the first match wins, as in SQLite itself
_KINDS: tuple[tuple[str, pa.DataType], ...] = (
    ("BOOL", pa.bool_()),
    ("TIMESTAMP", pa.timestamp("us")),
    ("DATETIME", pa.timestamp("us")),
    ("DATE", pa.date32()),
    ("INT", pa.int64()),
    ("BLOB", pa.binary()),
    ("REAL", pa.float64()),
    ("FLOA", pa.float64()),
    ("DOUB", pa.float64()),
)


class SqliteDatabase(Database):
    """Opened for reading only."""

    mark: ClassVar[str] = "?"

    def __init__(self, table: PollingTable, context: Context) -> None:
        path = Path(context.path(unquote(urlsplit(table.url.get_secret_value()).path[1:])))
        self._label = table.label
        if not path.is_file():
            raise missing(self._label, f"there is no file {path}")
        with self._explained():
            self._connection = sqlite3.connect(
                f"{path.as_uri()}?mode=ro",
                uri=True,
                timeout=table.timeout.total_seconds(),
                isolation_level=None,
                check_same_thread=False,
            )

    def describe(self, table: PollingTable) -> list[tuple[str, pa.DataType | None]]:
        """The declared types of a table; SQLite reports none for a query."""
        with self._explained():
            cursor = self._connection.execute(f"SELECT * FROM {self.relation(table)} LIMIT 0")
            names = [column[0] for column in cursor.description]
            if table.table is None:
                return [(name, None) for name in names]
            return [(str(name), _kind(declared)) for _, name, declared, *_ in self._about(table.table)]

    def primary_key(self, table: str) -> tuple[str, ...]:
        """The columns of a table's primary key."""
        with self._explained():
            placed = sorted((place, str(name)) for _, name, _, _, _, place in self._about(table) if place)
        return tuple(name for _, name in placed)

    def _about(self, table: str) -> list[Row]:
        schema, _, name = table.rpartition(".")
        question = "SELECT * FROM pragma_table_info(?, ?)"
        return self._connection.execute(question, (name, schema or "main")).fetchall()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """A transaction, which does not see later commits."""
        with self._explained():
            self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.rollback()

    def pages(self, statement: str, parameters: Sequence[Any]) -> Iterator[list[Row]]:
        with self._explained():
            cursor = self._connection.execute(statement, tuple(parameters))
            while page := cursor.fetchmany(PAGE):
                yield page

    def value(self, kind: pa.DataType, said: Any) -> Any:
        """Values are numbers and texts, as in JSON."""
        return said

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error) or "busy" in str(error):
                raise service_unavailable(self._label, str(error)) from error
            raise missing(self._label, str(error)) from error
        except sqlite3.Error as error:
            raise ProjectError(
                "table-refused", f"{self._label}: {error}", hint="check the file with sqlite3: PRAGMA integrity_check"
            ) from error


def _kind(declared: str) -> pa.DataType:
    upper = declared.upper()
    decimal = _DECIMAL.search(upper)
    if decimal:
        return pa.decimal128(min(38, int(decimal[1])), int(decimal[2] or 0))
    return next((kind for part, kind in _KINDS if part in upper), pa.string())
