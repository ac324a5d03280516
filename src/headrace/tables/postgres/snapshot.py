"""All rows of tables as of one position in the stream: a slot exports a snapshot, and COPY reads under it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import psycopg
import pyarrow as pa
import pyarrow.csv as csv
from psycopg import sql

from headrace.core.tables import TableShape
from headrace.systems.postgres.tables import Connection
from headrace.systems.services import service_unavailable
from headrace.tables.postgres.catalog import PgTable
from headrace.tables.postgres.pgoutput import bad_value, changed_type
from headrace.tables.postgres.stream import CopyMessages, answer, execute, lsn_number
from headrace.tables.postgres.types import PgType

_ROWS = 50_000
_BYTES = 32 << 20
_CANCEL_SECONDS = 5.0
# a table that was rewritten since appears empty in the snapshot
_AS_IT_WAS = """
SELECT bool_and(c.relfilenode = pg_relation_filenode(c.oid)) FROM pg_class c
WHERE c.oid IN (SELECT %s::oid UNION SELECT relid FROM pg_partition_tree(%s::oid)) AND c.relkind = 'r'
"""


class Export:
    """A slot that is being created, and the snapshot of its start.

    The server first waits for the end of all running transactions.
    """

    def __init__(self, connection: Connection, slot: str, temporary: bool) -> None:
        self._connection = connection
        word = sql.SQL(" TEMPORARY" if temporary else "")
        command = sql.SQL("CREATE_REPLICATION_SLOT {}{} LOGICAL pgoutput EXPORT_SNAPSHOT")
        statement = command.format(sql.Identifier(slot), word).as_string(connection)
        connection.pgconn.send_query(statement.encode())

    def done(self, until: float) -> tuple[int, str] | None:
        """The start of the slot and the name of the snapshot; None when that takes longer than so many seconds."""
        result = answer(self._connection, until)
        if result is None:
            return None
        point, name = result.get_value(0, 1), result.get_value(0, 2)
        assert point is not None
        assert name is not None
        return lsn_number(point.decode()), name.decode()

    def close(self) -> None:
        """Close the connection, which drops a temporary slot."""
        # while it waits for transactions, the server would not notice a closed connection
        with suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=_CANCEL_SECONDS)
        self._connection.close()


class TableSnapshot:
    """Tables as of one position in the stream."""

    def __init__(self, connection: Connection, lsn: int) -> None:
        self.connection = connection
        self.lsn = lsn

    def take_over(self, name: str) -> None:
        """Import the snapshot of the slot, while its connection is open."""
        self.connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        self.connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(name)))

    def hold(self, label: str, table: PgTable) -> None:
        """Lock the definition of a table until all its rows are read."""
        self.connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(table.relation))
        row = self.connection.execute(_AS_IT_WAS, (table.number, table.number)).fetchone()
        if row is not None and row[0] is False:
            raise service_unavailable(label, f"table {table.shown} was rewritten before it was read")

    def chunks(self, name: str, table: PgTable, shape: TableShape) -> Iterator[pa.Table]:
        """The rows, some ten thousand at a time, at least once."""
        columns = sql.SQL(", ").join(map(sql.Identifier, table.columns))
        statement = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT (FORMAT csv)").format(columns, table.relation)
        execute(self.connection, statement)
        lines: list[bytes] = []
        size = 0
        for line in CopyMessages(self.connection).all():  # the server sends one row per message
            lines.append(line)
            size += len(line)
            if len(lines) >= _ROWS or size >= _BYTES:
                yield _table(name, table, shape, b"".join(lines))
                lines, size = [], 0
        while self.connection.pgconn.get_result() is not None:
            pass  # the connection is free when all rows have been fetched
        yield _table(name, table, shape, b"".join(lines))

    def close(self) -> None:
        """Close the connection, and the snapshot with it."""
        self.connection.close()


def _table(name: str, table: PgTable, shape: TableShape, text: bytes) -> pa.Table:
    """The rows with the columns of the shape; dropped columns are null."""
    columns = _texts(list(table.columns), text)
    columns_read = []
    for column in shape.columns:
        if column.name in table.columns:
            columns_read.append(_column(name, table.columns[column.name], columns, column.name, shape.key))
        else:
            columns_read.append(pa.nulls(columns.num_rows, column.type))
    return pa.table(columns_read, schema=shape.columns)


def _texts(names: list[str], text: bytes) -> pa.Table:
    if not text:
        return pa.schema([(name, pa.string()) for name in names]).empty_table()
    return csv.read_csv(
        pa.BufferReader(text),
        # one block, since a value may be longer than any block
        read_options=csv.ReadOptions(column_names=names, block_size=len(text) + 1, use_threads=False),
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        # null is an empty field, and an empty text is quoted
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _column(name: str, kind: PgType, texts: pa.Table, column: str, key: Sequence[str]) -> pa.Array:
    values = texts[column].combine_chunks()
    try:
        return kind.column(values)
    except (ValueError, ArithmeticError):
        _refuse_value(name, kind, texts, column, key)
        raise


def _refuse_value(name: str, kind: PgType, texts: pa.Table, column: str, key: Sequence[str]) -> None:
    """Raise an error that names the row whose value cannot be parsed."""
    for place, text in enumerate(texts[column].to_pylist()):
        try:
            _ = None if text is None else kind.parse(text)
        except (ValueError, ArithmeticError) as error:
            row = texts.select(list(key)).slice(place, 1).to_pylist()[0]
            raise bad_value(name, f"({', '.join(map(str, row.values()))})", column, f"{text[:60]}: {error}") from error


def snapshot_shape(name: str, table: PgTable, known: TableShape | None, key: tuple[str, ...]) -> TableShape:
    """The columns of a table from now on: those in the log, then new ones."""
    if known is None:
        return TableShape(table.shape.columns, key)
    had = {column.name: column.type for column in known.columns}
    for column in table.shape.columns:
        if had.get(column.name, column.type) != column.type:
            raise changed_type(name, column.name, had[column.name], column.type)
    added = [column for column in table.shape.columns if column.name not in had]
    return TableShape(pa.schema([*known.columns, *added]), key)
