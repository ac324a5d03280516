"""One question, answered by a DuckDB that holds nothing else."""

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
from headrace.serve.sql.text import Question, not_allowed, read
from headrace.store.rows.row_json import column_json

_ROWS_AT_ONCE = 1_000
_BYTES_SHARE = 4
"""An answer may take up the memory of a question divided by this."""
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
    "threads": "1",
}
_OWN_NAMES = """
SELECT view_name FROM duckdb_views() WHERE schema_name <> 'information_schema'
UNION ALL SELECT table_name FROM duckdb_tables()
"""
_READS = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
Parameters = Sequence[Any] | Mapping[str, Any] | None
Writer = Callable[[pa.Array], list[bytes]]


def answer(text: str, parameters: Parameters, tables: Tables, limits: SqlLimits) -> bytes:
    """The answer as JSON; a RequestError when there is none."""
    question = read(text)
    if question.lists_tables:
        return _document([("name", "string")], [b'["' + name.encode() + b'"]' for name in tables.names()], False)
    seconds = limits.time.total_seconds()
    with _database(limits.memory) as database, _told(seconds, tables.lakes), _interrupted(database, seconds):
        found = tables.load(database, question, time.monotonic() + seconds)
        database.execute("SET lock_configuration = true")
        _check(database, question, found, tables)
        return _run(database, question, parameters, limits)


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
def _told(seconds: float, lakes: Mapping[str, str]) -> Iterator[None]:
    """Errors of the database as the caller is told them. Some come through Arrow, which keeps only their text."""
    try:
        yield
    except (duckdb.Error, OSError, pa.ArrowException, ValueError, OverflowError) as error:
        text = str(error)
        if isinstance(error, duckdb.InterruptException) or "INTERRUPT Error" in text:
            raise timed_out(seconds) from error
        if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory Error" in text:
            raise out_of_memory() from error
        for flow, path in lakes.items():  # where tables are is nobody's business
            text = text.replace(path, flow)
        raise RequestError("bad-sql", text[:1_000]) from error
    except MemoryError as error:
        raise out_of_memory() from error


def out_of_memory() -> RequestError:
    """The error for a question that takes too much."""
    return RequestError(
        "sql-memory",
        "the question needs more memory than it may have",
        status=413,
        hint="narrow it, name fewer columns, or raise serve.limits.sql.memory",
    )


def _check(database: duckdb.DuckDBPyConnection, question: Question, found: set[str], tables: Tables) -> None:
    """What the database itself takes the text for; and that a name which the question makes up for one of its parts
    does not mean one of the database's own tables elsewhere in it."""
    statements = database.extract_statements(question.text)
    if len(statements) != 1 or statements[0].type not in _READS:
        raise not_allowed("this is not one question")
    if question.made_up - found:
        own = {name.lower() for (name,) in database.execute(_OWN_NAMES).fetchall()}
        for name in sorted(own & (question.made_up - found)):
            raise unknown_table(name, tables.names())


def _run(database: duckdb.DuckDBPyConnection, question: Question, parameters: Parameters, limits: SqlLimits) -> bytes:
    relation = database.sql(question.text, params=parameters)
    writers = [_writer(kind) for kind in relation.types]
    reader = relation.to_arrow_reader(_ROWS_AT_ONCE)
    try:
        kinds = [_type_name(field.type) for field in reader.schema]
        columns = list(zip(_once(reader.schema.names), kinds, strict=True))
        rows = _bounded(reader, writers, limits)
    finally:
        reader.close()
    return _document(columns, rows[: limits.rows], truncated=len(rows) > limits.rows)


def _bounded(reader: pa.RecordBatchReader, writers: list[Writer], limits: SqlLimits) -> list[bytes]:
    """All rows, or one more than an answer may have."""
    rows: list[bytes] = []
    left = most = limits.memory // _BYTES_SHARE
    for batch in reader:
        columns = [write(column) for write, column in zip(writers, batch.columns, strict=True)]
        new = [b"[" + b",".join(values) + b"]" for values in zip(*columns, strict=True)]
        left -= sum(map(len, new))
        if left < 0:
            message = f"the answer is larger than {most:,} bytes"
            raise RequestError("sql-memory", message, status=413, hint="ask for fewer columns, or add a LIMIT")
        rows += new
        if len(rows) > limits.rows:
            break
    return rows


def _document(columns: list[tuple[str, str]], rows: list[bytes], truncated: bool) -> bytes:
    head = msgspec.json.encode([{"name": name, "type": kind} for name, kind in columns])
    end = b"true" if truncated else b"false"
    return b'{"columns":' + head + b',"rows":[' + b",".join(rows) + b'],"truncated":' + end + b"}"


def _once(names: Sequence[str]) -> list[str]:
    """Names as they are; one that is there already gets a number."""
    found: list[str] = []
    for name in names:
        number, unique = 1, name
        while unique in found:
            number += 1
            unique = f"{name}_{number}"
        found.append(unique)
    return found


def _type_name(kind: pa.DataType) -> str:
    try:
        return ddl_type(kind.value_type if pa.types.is_dictionary(kind) else kind)
    except KeyError:  # a type that endpoints do not have: given as text
        return "string"


def _writer(kind: Any) -> Writer:
    return _whole_numbers if str(kind) in ("HUGEINT", "UHUGEINT") else _json


def _whole_numbers(column: pa.Array) -> list[bytes]:
    """Sums of whole numbers are whole numbers, though Arrow has only decimals for such large ones."""
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
