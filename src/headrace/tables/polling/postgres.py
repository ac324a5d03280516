"""A PostgreSQL server that is polled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
from psycopg.types.numeric import NumericLoader
from psycopg.types.string import TextLoader

from headrace.core.context import Context
from headrace.core.schema import TIMESTAMP
from headrace.systems.postgres.connection import server_parameters
from headrace.systems.postgres.server import one_line
from headrace.systems.postgres.tables import TableServer, explained
from headrace.tables.polling.database import PAGE, Database, Row, missing, value_unfit

if TYPE_CHECKING:
    from headrace.tables.polling import PollingTable

_KINDS = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": TIMESTAMP,
}
# types without a counterpart in Spark: texts as the server writes them
_TEXTS = ("time", "timetz", "interval", "json", "jsonb", "uuid")
_MISSING = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.SyntaxErrorOrAccessRuleViolation,
)
_LARGEST = 38


class _FiniteNumbers(NumericLoader):
    """NaN and infinite numbers, which no decimal can be, become null."""

    def load(self, data: Any) -> Any:
        number = super().load(data)
        return number if isinstance(number, Decimal) and number.is_finite() else None


class PostgresDatabase(Database):
    """Queried in read-only transactions."""

    def __init__(self, table: PollingTable, context: Context) -> None:
        self._label = table.label
        parameters = server_parameters(table.url, table.username, table.password, table.tls, context, table.timeout)
        self._connection = TableServer(table.label, **parameters).connect()
        for name in _TEXTS:
            self._connection.adapters.register_loader(name, TextLoader)
        self._connection.adapters.register_loader("numeric", _FiniteNumbers)

    def describe(self, table: PollingTable) -> list[tuple[str, pa.DataType | None]]:
        """As the server describes an empty result."""
        with self._found():
            cursor = self._connection.execute(f"SELECT * FROM {self.relation(table)} LIMIT 0", ())
            return [(column.name, self._kind(column)) for column in cursor.description or ()]

    def _kind(self, column: psycopg.Column) -> pa.DataType:
        known = self._connection.adapters.types.get(column.type_code)
        name = "text" if known is None else known.name
        if name == "numeric":
            # without precision, 18 digits after the point leave room for 20 before it
            precision, scale = (column.precision, column.scale) if column.precision else (_LARGEST, 18)
            kind = pa.decimal128(min(_LARGEST, precision), min(_LARGEST, max(0, scale or 0)))
        else:
            kind = _KINDS.get(name, pa.string())
        return pa.list_(kind) if known is not None and known.array_oid == column.type_code else kind

    def primary_key(self, table: str) -> tuple[str, ...]:
        """The columns of a table's primary key, in its order."""
        question = (
            "SELECT a.attname FROM pg_index i "
            "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey) "
            "WHERE i.indisprimary AND i.indrelid = %s::regclass ORDER BY array_position(i.indkey::int2[], a.attnum)"
        )
        with self._found():
            name = ".".join('"' + part.replace('"', '""') + '"' for part in table.split("."))
            return tuple(str(row[0]) for row in self._connection.execute(question, (name,)).fetchall())

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """A consistent snapshot as of the first statement."""
        with explained(self._label), self._connection.transaction(force_rollback=True):
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield

    def pages(self, statement: str, parameters: Sequence[Any]) -> Iterator[list[Row]]:
        """Pages from a cursor of the server."""
        with explained(self._label), self._connection.cursor(name="headrace_polling") as cursor:
            cursor.execute(statement, tuple(parameters))
            while page := self._page(cursor):
                yield page

    def _page(self, cursor: psycopg.ServerCursor[Any]) -> list[Row]:
        try:
            return cursor.fetchmany(PAGE)
        except psycopg.DataError as error:
            if error.sqlstate is not None:
                raise
            raise value_unfit(
                self._label, str(error)
            ) from error  # such as an infinite date, which Python does not have

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _found(self) -> Iterator[None]:
        with explained(self._label):
            try:
                yield
            except _MISSING as error:
                if isinstance(error, psycopg.errors.InsufficientPrivilege):
                    raise
                raise missing(self._label, one_line(error)) from error
