"""A MySQL or MariaDB server that is polled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pymysql
from pymysql.constants import FIELD_TYPE
from pymysql.cursors import SSCursor

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.schema import TIMESTAMP
from headrace.systems.mysql import ACCESS_DENIED, MySqlAddress, error_code, error_text
from headrace.systems.services import access_denied, service_unavailable
from headrace.tables.polling.database import PAGE, Database, Row, missing

if TYPE_CHECKING:
    from headrace.tables.polling import PollingTable

# one size larger: the server does not report whether a number is unsigned
_KINDS = {
    FIELD_TYPE.TINY: pa.int16(),
    FIELD_TYPE.SHORT: pa.int32(),
    FIELD_TYPE.INT24: pa.int32(),
    FIELD_TYPE.YEAR: pa.int32(),
    FIELD_TYPE.LONG: pa.int64(),
    FIELD_TYPE.LONGLONG: pa.int64(),
    FIELD_TYPE.FLOAT: pa.float32(),
    FIELD_TYPE.DOUBLE: pa.float64(),
    FIELD_TYPE.DATE: pa.date32(),
    FIELD_TYPE.NEWDATE: pa.date32(),
    FIELD_TYPE.DATETIME: pa.timestamp("us"),
    FIELD_TYPE.TIMESTAMP: TIMESTAMP,
    FIELD_TYPE.BIT: pa.binary(),
    FIELD_TYPE.GEOMETRY: pa.binary(),
}
_DECIMALS = (FIELD_TYPE.DECIMAL, FIELD_TYPE.NEWDECIMAL)
_DENIED = ACCESS_DENIED | {1143}
_MISSING = (1049, 1054, 1064, 1146)
# connection lost or refused, too many connections, lock wait, deadlock, shutting down
_TRANSIENT = (1040, 1053, 1205, 1213, 2002, 2003, 2006, 2013, 2014)


class MysqlDatabase(Database):
    """Queried in read-only transactions; times with a zone are in UTC."""

    quote: ClassVar[str] = "`"

    def __init__(self, table: PollingTable, context: Context) -> None:
        secret = None if table.password is None else table.password.get_secret_value()
        address = MySqlAddress(table.url.get_secret_value(), table.username, secret)
        self._label = table.label
        with self._explained():
            self._connection = pymysql.connect(
                **address.arguments(table.timeout.total_seconds()),
                database=address.database,
                init_command="SET SESSION time_zone = '+00:00'",
                ssl=None if table.tls is None else table.tls.texts(context).ssl_context(),
                cursorclass=SSCursor,
            )

    def describe(self, table: PollingTable) -> list[tuple[str, pa.DataType | None]]:
        """As the server describes an empty result."""
        with self._explained(), self._connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {self.relation(table)} LIMIT 0", ())
            return [(column[0], _kind(column)) for column in cursor.description or ()]

    def primary_key(self, table: str) -> tuple[str, ...]:
        """The columns of a table's primary key, in its order."""
        schema, _, name = table.rpartition(".")
        question = (
            "SELECT column_name FROM information_schema.key_column_usage WHERE constraint_name = 'PRIMARY' "
            "AND table_schema = COALESCE(NULLIF(%s, ''), DATABASE()) AND table_name = %s ORDER BY ordinal_position"
        )
        with self._explained(), self._connection.cursor() as cursor:
            cursor.execute(question, (schema, name))
            return tuple(str(row[0]) for row in cursor.fetchall())

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """A consistent snapshot, for tables of a transactional engine."""
        self._execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        self._execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        try:
            yield
        finally:
            if self._connection.open:
                self._execute("ROLLBACK")

    def pages(self, statement: str, parameters: Sequence[Any]) -> Iterator[list[Row]]:
        """Pages as the server sends them."""
        with self._explained(), self._connection.cursor() as cursor:
            cursor.execute(statement, tuple(parameters))
            while page := cursor.fetchmany(PAGE):
                yield list(page)

    def close(self) -> None:
        """Close the connection; in the middle of a result only by force."""
        if self._connection.open:
            self._connection._force_close()

    def _execute(self, statement: str) -> None:
        with self._explained(), self._connection.cursor() as cursor:
            cursor.execute(statement)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except pymysql.MySQLError as error:
            raise _explanation(self._label, error) from error


def _kind(column: Sequence[Any]) -> pa.DataType:
    _, code, _, _, length, scale, *_ = column
    if code in _DECIMALS:
        return pa.decimal128(min(38, max(length, scale, 1)), min(38, scale))
    return _KINDS.get(code, pa.string())


def _explanation(label: str, error: pymysql.MySQLError) -> ProjectError:
    code, reason = error_code(error), error_text(error)
    if code in _DENIED:
        return access_denied(label, reason)
    if code in _MISSING:
        return missing(label, reason)
    if code in _TRANSIENT or isinstance(error, pymysql.err.InterfaceError):
        return service_unavailable(label, reason)
    return ProjectError("table-refused", f"{label}: {reason}", hint="see the server's log")
