"""Executes one SQL query in a DuckDB database that contains only its tables."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

from headrace.core.errors import RequestError
from headrace.core.schema import ddl_type
from headrace.project.serving import SqlLimits
from headrace.serve.sql.tables import Tables, timed_out, unknown_table
from headrace.serve.sql.text import SqlQuery, not_allowed, read
from headrace.store.rows.row_json import column_json

_ROWS_AT_ONCE = 1_000
_BYTES_SHARE = 4
"""The result may take the memory limit of a query divided by this."""
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
    "threads": "1",
}
_SYSTEM_NAMES = """
SELECT view_name FROM duckdb_views() WHERE schema_name <> 'information_schema'
UNION ALL SELECT table_name FROM duckdb_tables()
"""
_READS = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
Parameters = Sequence[Any] | Mapping[str, Any] | None
Writer = Callable[[pa.Array], list[bytes]]


def execute(text: str, parameters: Parameters, tables: Tables, limits: SqlLimits) -> bytes:
    """The result as JSON; RequestError when the query fails."""
    query = read(text)
    if query.lists_tables:
        return _document([("name", "string")], [b'["' + name.encode() + b'"]' for name in tables.names()], False)
    seconds = limits.time.total_seconds()
    with _database(limits.memory) as database, _translated(seconds, tables.lakes), _interrupted(database, seconds):
        loaded = tables.load(database, query, time.monotonic() + seconds)
        database.execute("SET lock_configuration = true")
        _check(database, query, loaded, tables)
        return _run(database, query, parameters, limits)


@contextmanager
def _database(memory: int) -> Iterator[duckdb.DuckDBPyConnection]:
    database = duckdb.connect(":memory:", config={**_CONFIG, "memory_limit": f"{memory}B"})
    try:
        database.execute("SET TimeZone = 'UTC'")
        yield database
    finally:
        database.close()


@contextmanager
def _interrupted(database: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, database.interrupt)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _translated(seconds: float, lakes: Mapping[str, str]) -> Iterator[None]:
    """Translate errors of the database for the caller. Some come through Arrow, which keeps only their text."""
    try:
        yield
    except (duckdb.Error, OSError, pa.ArrowException, ValueError, OverflowError) as error:
        text = str(error)
        if isinstance(error, duckdb.InterruptException) or "INTERRUPT Error" in text:
            raise timed_out(seconds) from error
        if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory Error" in text:
            raise out_of_memory() from error
        for flow, path in lakes.items():  # callers must not learn the paths of tables
            text = text.replace(path, flow)
        raise RequestError("bad-sql", text[:1_000]) from error
    except MemoryError as error:
        raise out_of_memory() from error


def out_of_memory() -> RequestError:
    return RequestError(
        "sql-memory",
        "the query needs more memory than allowed",
        status=413,
        hint="restrict the query, select fewer columns, or raise serve.limits.sql.memory",
    )


def _check(database: duckdb.DuckDBPyConnection, query: SqlQuery, loaded: set[str], tables: Tables) -> None:
    """Check how the database itself reads the text, and that a name that the query defines (a CTE) does not refer to a
    system table elsewhere in the query."""
    statements = database.extract_statements(query.text)
    if len(statements) != 1 or statements[0].type not in _READS:
        raise not_allowed("the text is not a single query")
    if query.defined - loaded:
        system = {name.lower() for (name,) in database.execute(_SYSTEM_NAMES).fetchall()}
        for name in sorted(system & (query.defined - loaded)):
            raise unknown_table(name, tables.names())


def _run(database: duckdb.DuckDBPyConnection, query: SqlQuery, parameters: Parameters, limits: SqlLimits) -> bytes:
    relation = database.sql(query.text, params=parameters)
    writers = [_writer(kind) for kind in relation.types]
    reader = relation.to_arrow_reader(_ROWS_AT_ONCE)
    try:
        kinds = [_type_name(field.type) for field in reader.schema]
        columns = list(zip(_unique(reader.schema.names), kinds, strict=True))
        rows = _bounded(reader, writers, limits)
    finally:
        reader.close()
    return _document(columns, rows[: limits.rows], truncated=len(rows) > limits.rows)


def _bounded(reader: pa.RecordBatchReader, writers: list[Writer], limits: SqlLimits) -> list[bytes]:
    """All rows, or one more than the limit."""
    rows: list[bytes] = []
    left = most = limits.memory // _BYTES_SHARE
    for batch in reader:
        columns = [write(column) for write, column in zip(writers, batch.columns, strict=True)]
        new = [b"[" + b",".join(values) + b"]" for values in zip(*columns, strict=True)]
        left -= sum(map(len, new))
        if left < 0:
            message = f"the result is larger than {most:,} bytes"
            raise RequestError("sql-memory", message, status=413, hint="select fewer columns, or add a LIMIT")
        rows += new
        if len(rows) > limits.rows:
            break
    return rows


def _document(columns: list[tuple[str, str]], rows: list[bytes], truncated: bool) -> bytes:
    head = msgspec.json.encode([{"name": name, "type": kind} for name, kind in columns])
    end = b"true" if truncated else b"false"
    return b'{"columns":' + head + b',"rows":[' + b",".join(rows) + b'],"truncated":' + end + b"}"


def _unique(names: Sequence[str]) -> list[str]:
    """The names; a repeated one gets a number."""
    unique_names: list[str] = []
    for name in names:
        number, unique = 1, name
        while unique in unique_names:
            number += 1
            unique = f"{name}_{number}"
        unique_names.append(unique)
    return unique_names


def _type_name(kind: pa.DataType) -> str:
    try:
        return ddl_type(kind.value_type if pa.types.is_dictionary(kind) else kind)
    except KeyError:  # a type that endpoints do not have: returned as text
        return "string"


def _writer(kind: Any) -> Writer:
    return _whole_numbers if str(kind) in ("HUGEINT", "UHUGEINT") else _json


def _whole_numbers(column: pa.Array) -> list[bytes]:
    """Sums of whole numbers are whole numbers, but Arrow represents large ones as decimals."""
    return [b"null" if value is None else b"%d" % int(value) for value in column.to_pylist()]


def _json(column: pa.Array) -> list[bytes]:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        ddl_type(column.type)
    except KeyError:
        return [b"null" if value is None else msgspec.json.encode(_text(value)) for value in column.to_pylist()]
    return column_json(column)


def _text(value: Any) -> str:
    if isinstance(value, pa.MonthDayNano):
        return f"{value.months} months {value.days} days {value.nanoseconds / 1e9:g} seconds"
    return str(value)
