"""What a caller may ask about, put into a database that only its question sees."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.core.errors import RequestError, did_you_mean
from headrace.serve.access.access import Door, Doors
from headrace.serve.access.grants import Grant
from headrace.serve.sql.text import QueriedTable, Question
from headrace.store.rows.row_json import Picker

if TYPE_CHECKING:
    import duckdb
    from pyarrow.dataset import Dataset

LAKE = "lake"
_ROWS_AT_ONCE = 8_192


@dataclass(frozen=True)
class Tables:
    """The endpoints and lake tables that one caller may see.

    A token that names its endpoints sees no lake table: what it may see of them nobody has said.
    """

    doors: Doors
    grant: Grant
    lakes: Mapping[str, str]
    """Their paths, by flow."""

    def names(self) -> list[str]:
        """All of them, as they can be asked for."""
        return [*self.doors.names(self.grant), *(f"{LAKE}.{name}" for name in self._lakes())]

    def load(self, database: duckdb.DuckDBPyConnection, question: Question, until: float) -> set[str]:
        """Put what a question is about into the database; the names there."""
        database.execute(f"CREATE SCHEMA {LAKE}")
        return {str(table) for table in question.tables if self._load(database, table, question, until)}

    def _load(self, database: duckdb.DuckDBPyConnection, table: QueriedTable, question: Question, until: float) -> bool:
        bare = table.name.partition("@")[0]
        if not table.schema and bare in self.doors.names(self.grant):
            door = self.doors.open(self.grant, table.name, "sql")
            _fill(database, table, door, question, until)
            return True
        lakes = {name.lower(): name for name in self._lakes()}
        if table.schema in ("", LAKE) and table.name in lakes:
            _link(database, table, lakes[table.name], self.lakes[lakes[table.name]])
            return True
        if not table.schema and table.name in question.made_up:
            return False
        raise unknown_table(str(table), self.names())

    def _lakes(self) -> list[str]:
        return sorted(self.lakes) if self.grant.endpoints is None else []


def unknown_table(name: str, known: Iterable[str]) -> RequestError:
    """The error for a table that is not there, or not for this caller: which of both is not told."""
    hint = did_you_mean(name, known, "tables")
    return RequestError("unknown-table", f"there is no table '{name[:200]}'", hint=hint)


def timed_out(seconds: float | None = None) -> RequestError:
    """The error for a question that takes too long."""
    limit = "" if seconds is None else f" within {seconds:g} s"
    return RequestError(
        "sql-timeout",
        f"the question was not answered{limit}",
        status=408,
        hint="narrow it, or raise serve.limits.sql.time",
    )


def _fill(
    database: duckdb.DuckDBPyConnection, table: QueriedTable, door: Door, question: Question, until: float
) -> None:
    """Rows as the caller sees them, with the columns that the question needs."""
    names = question.columns(door.endpoint.columns.names)
    schema = pa.schema([door.endpoint.columns.field(name) for name in names])
    quoted = _quoted(table)
    _insert(database, f"CREATE TABLE {quoted} AS", schema.empty_table())
    if question.describes:
        return
    for batch in _batches(door, schema):
        if time.monotonic() > until:
            raise timed_out()
        _insert(database, f"INSERT INTO {quoted}", pa.Table.from_batches([batch]))


def _insert(database: duckdb.DuckDBPyConnection, what: str, rows: pa.Table) -> None:
    database.register("_rows", rows)
    try:
        database.execute(f"{what} FROM _rows")
    finally:
        database.unregister("_rows")


def _batches(door: Door, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    pick = Picker(schema, schema.names)
    with door.view() as view:
        rows = door.scan(view)
        while chunk := [pick(row.json) for row in islice(rows, _ROWS_AT_ONCE)]:
            columns = zip(*chunk, strict=True)
            arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _link(database: duckdb.DuckDBPyConnection, table: QueriedTable, flow: str, path: str) -> None:
    """A lake table stays where it is: files, columns and row groups are picked by what the question needs."""
    source = f"_lake_{flow}"
    database.register(source, _dataset(flow, path))
    database.execute(f'CREATE OR REPLACE VIEW {_quoted(table)} AS FROM "{source}"')


def _dataset(flow: str, path: str) -> Dataset:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        return DeltaTable(path).to_pyarrow_dataset()
    except TableNotFoundError:
        why = "nothing was written to it yet"
    except (DeltaError, OSError) as error:
        why = str(error).replace(path, "it")[:300]
    raise RequestError("lake-unreadable", f"the lake table of flow '{flow}' cannot be read: {why}", status=503)


def _quoted(table: QueriedTable) -> str:
    name = '"' + table.name.replace('"', '""') + '"'
    return f"{LAKE}.{name}" if table.schema else name
