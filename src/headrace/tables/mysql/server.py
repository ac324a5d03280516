"""One MySQL or MariaDB server: connections, settings, and descriptions of its tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pymysql

from headrace.core.errors import Exit, ProjectError
from headrace.core.tables import TableShape
from headrace.systems.mysql import ACCESS_DENIED, MySqlAddress, error_code, error_text
from headrace.tables.mysql.types import MyColumn

_CONNECT_SECONDS = 10
_DENIED = ACCESS_DENIED | {1049, 1130, 1227, 1396}
_PURGED = 1236
_GRANTS = "GRANT SELECT, RELOAD, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO the user"
_REQUIRED = {
    "log_bin": ("ON", "start the server with --log-bin"),
    "binlog_format": ("ROW", "SET GLOBAL binlog_format = ROW"),
    "binlog_row_image": ("FULL", "SET GLOBAL binlog_row_image = FULL"),
    "binlog_row_metadata": ("FULL", "SET GLOBAL binlog_row_metadata = FULL (MySQL 8.0.14, MariaDB 10.5 or later)"),
}
_REFUSED = {
    "log_bin_compress": "SET GLOBAL log_bin_compress = OFF",
    "binlog_transaction_compression": "SET GLOBAL binlog_transaction_compression = OFF",
    "binlog_row_value_options": "SET GLOBAL binlog_row_value_options = ''",
}
_COLUMNS = """
SELECT column_name, data_type, column_type, is_nullable, column_default, character_octet_length, numeric_precision,
       numeric_scale
FROM information_schema.columns
WHERE table_schema = %s AND table_name = %s AND extra NOT LIKE '%%VIRTUAL%%'
ORDER BY ordinal_position
"""
_KEY = """
SELECT column_name FROM information_schema.key_column_usage
WHERE table_schema = %s AND table_name = %s AND constraint_name = 'PRIMARY' ORDER BY ordinal_position
"""
_FILE = re.compile(r"(.*\D)?(\d+)")


@dataclass(frozen=True, order=True)
class BinlogPosition:
    """A position in the binlog, after a whole transaction."""

    number: int
    """Of the file."""
    offset: int
    file: str = field(compare=False)

    @staticmethod
    def of(file: str, offset: int) -> BinlogPosition:
        """A file's name ends with its number."""
        match = _FILE.fullmatch(file)
        return BinlogPosition(int(match[2]) if match else 0, offset, file)


@dataclass(frozen=True)
class Described:
    """A table as it is now."""

    columns: tuple[MyColumn, ...]
    shape: TableShape


@dataclass(frozen=True)
class MyServer:
    """A server whose tables are read. Its repr shows no password."""

    url: str = field(repr=False)

    @property
    def _at(self) -> MySqlAddress:
        return MySqlAddress(self.url)

    @property
    def address(self) -> str:
        """user@host:port, without the password."""
        return f"{self._at.user}@{self._at.host_port}"

    @property
    def database(self) -> str:
        return self._at.database

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of a connection, also of the one that reads the binlog."""
        authority = self._at.parameters.get("ssl-ca")
        tls = {} if authority is None else {"ssl_ca": authority, "ssl_verify_identity": True}
        return {**self._at.login(_CONNECT_SECONDS), **tls}

    @contextmanager
    def session(self, cursor: type[pymysql.cursors.Cursor] = pymysql.cursors.Cursor) -> Iterator[Session]:
        """A connection for queries; its errors are raised as ProjectError."""
        with self.failures():
            connection = pymysql.connect(**self.settings, autocommit=True, read_timeout=600, cursorclass=cursor)
            try:
                yield Session(connection)
            finally:
                connection.close()

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Raise errors of pymysql as ProjectError."""
        try:
            yield
        except (pymysql.Error, OSError) as error:
            raise self.failure(error) from None

    def failure(self, error: Exception) -> ProjectError:
        code = error_code(error)
        reason = error_text(error).replace(self._at.password or "\0", "***")[:300]
        if code in _DENIED:
            return ProjectError("mysql-authentication", f"{self.address} refuses this user: {reason}", hint=_GRANTS)
        if code == _PURGED:
            return binlog_missing(self.address, reason)
        return ProjectError(
            "mysql-unreachable",
            f"{self.address} does not answer: {reason}",
            hint="check host, port and network",
            exit_code=Exit.TRANSIENT,
        )


def binlog_missing(address: str, why: str) -> ProjectError:
    """The error for a binlog that was purged or cannot be read."""
    return ProjectError(
        "binlog-missing",
        f"the binlog of {address} cannot be read from the last position on: {why}",
        hint="was it purged? Keep it longer (binlog_expire_logs_seconds), and remove the table's log to start with a "
        "new snapshot. Two readers with one server_id also end each other",
        exit_code=Exit.CONFLICT,
    )


class Session:
    """Queries on one connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a result."""
        with self._connection.cursor() as cursor:
            cursor.execute(sql, values or None)
            return list(cursor.fetchall())

    def chunks(self, sql: str, size: int) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of a large result in chunks."""
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            while rows := cursor.fetchmany(size):
                yield list(rows)

    def variable(self, name: str) -> str | None:
        """A setting of the server; None when it does not exist."""
        rows = self.query("SHOW GLOBAL VARIABLES LIKE %s", (name,))
        return str(rows[0][1]) if rows else None

    @property
    def is_mariadb(self) -> bool:
        return "MariaDB" in str(self._connection.get_server_info())

    def identity(self) -> str:
        """A unique id of the server."""
        return self.variable("server_uuid") or self.variable("server_uid") or f"id {self.variable('server_id')}"

    def check(self, address: str) -> None:
        """Raise a ProjectError for settings that make the binlog incomplete."""
        for name, (required, fix) in _REQUIRED.items():
            value = self.variable(name)
            if (value or "").upper() != required:
                raise _settings(address, name, value, fix)
        for name, fix in _REFUSED.items():
            value = self.variable(name)
            if value not in (None, "", "OFF"):
                raise _settings(address, name, value, fix)
        self.end()  # needs the same privilege as reading the binlog

    def end(self) -> BinlogPosition:
        try:
            (status,) = self.query("SHOW MASTER STATUS")
        except pymysql.err.ProgrammingError:  # MySQL 8.4 and later
            (status,) = self.query("SHOW BINARY LOG STATUS")
        return BinlogPosition.of(str(status[0]), int(status[1]))

    def logs(self) -> list[tuple[BinlogPosition, int]]:
        """The files of the binlog and their sizes, oldest first."""
        return [(BinlogPosition.of(str(row[0]), 4), int(row[1])) for row in self.query("SHOW BINARY LOGS")]

    def freeze(self) -> BinlogPosition:
        """Start a transaction with a consistent snapshot of all tables; the position in the binlog of that snapshot."""
        self.query("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        self.query("SET SESSION time_zone = '+00:00'")
        if self.is_mariadb:
            self.query("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            status = {str(name).lower(): value for name, value in self.query("SHOW STATUS LIKE 'binlog_snapshot_%%'")}
            return BinlogPosition.of(status["binlog_snapshot_file"], int(status["binlog_snapshot_position"]))
        # no commit may be in the binlog and not yet in the tables: a short global lock
        self.query("FLUSH TABLES WITH READ LOCK")
        try:
            self.query("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            return self.end()
        finally:
            self.query("UNLOCK TABLES")

    def describe(self, schema: str, table: str) -> Described | None:
        """Columns and key of a table, without virtual columns; None when it does not exist."""
        rows = self.query(_COLUMNS, (schema, table))
        if not rows:
            return None
        columns = tuple(
            MyColumn(name, str(kind).lower(), str(whole).lower(), nullable == "YES", default, length, precision, scale)
            for name, kind, whole, nullable, default, length, precision, scale in rows
        )
        key = tuple(str(row[0]) for row in self.query(_KEY, (schema, table)))
        fields = pa.schema([(column.name, column.arrow(f"{schema}.{table}")) for column in columns])
        return Described(columns, TableShape(fields, key))


def _settings(address: str, name: str, value: str | None, fix: str) -> ProjectError:
    return ProjectError(
        "mysql-settings", f"{address} has {name} = {value or 'nothing'}, so its binlog is incomplete", hint=fix
    )
