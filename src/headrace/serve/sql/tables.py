"""Loads the tables of a query into its database, with the rows and columns that `EndpointAccess` shows the caller."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.core.errors import RequestError, did_you_mean
from headrace.serve.access.access import AccessControl, EndpointAccess
from headrace.serve.access.grants import Grant
from headrace.serve.sql.text import QueriedTable, SqlQuery
from headrace.store.rows.row_json import Picker

if TYPE_CHECKING:
    import duckdb
    from pyarrow.dataset import Dataset

LAKE = "lake"
_ROWS_AT_ONCE = 8_192


@dataclass(frozen=True)
class Tables:
    """The endpoints and lake tables that one caller may see.

    A token that names its endpoints sees no lake table, because it says nothing about lake tables.
    """

    access: AccessControl
    grant: Grant
    lakes: Mapping[str, str]
    """Paths of lake tables, by flow."""

    def names(self) -> list[str]:
        return [*self.access.names(self.grant), *(f"{LAKE}.{name}" for name in self._lakes())]

    def load(self, database: duckdb.DuckDBPyConnection, query: SqlQuery, until: float) -> set[str]:
        """Load the tables of a query into the database; returns their names."""
        database.execute(f"CREATE SCHEMA {LAKE}")
        return {str(table) for table in query.tables if self._load(database, table, query, until)}

    def _load(self, database: duckdb.DuckDBPyConnection, table: QueriedTable, query: SqlQuery, until: float) -> bool:
        bare = table.name.partition("@")[0]
        if not table.schema and bare in self.access.names(self.grant):
            access = self.access.open(self.grant, table.name, "sql")
            _fill(database, table, access, query, until)
            return True
        lakes = {name.lower(): name for name in self._lakes()}
        if table.schema in ("", LAKE) and table.name in lakes:
            _link(database, table, lakes[table.name], self.lakes[lakes[table.name]])
            return True
        if not table.schema and table.name in query.defined:
            return False
        raise unknown_table(str(table), self.names())

    def _lakes(self) -> list[str]:
        return sorted(self.lakes) if self.grant.endpoints is None else []


def unknown_table(name: str, known: Iterable[str]) -> RequestError:
    """The error for a table that does not exist or is not visible: the caller cannot distinguish the two."""
    hint = did_you_mean(name, known, "tables")
    return RequestError("unknown-table", f"unknown table '{name[:200]}'", hint=hint)


def timed_out(seconds: float | None = None) -> RequestError:
    limit = "the time limit" if seconds is None else f"{seconds:g} s"
    return RequestError(
        "sql-timeout",
        f"the query took longer than {limit}",
        status=408,
        hint="restrict the query, or raise serve.limits.sql.time",
    )


def _fill(
    database: duckdb.DuckDBPyConnection, table: QueriedTable, access: EndpointAccess, query: SqlQuery, until: float
) -> None:
    """Load the rows that the caller may see, with the columns that the query needs."""
    names = query.columns(access.endpoint.columns.names)
    schema = pa.schema([access.endpoint.columns.field(name) for name in names])
    quoted = _quoted(table)
    _insert(database, f"CREATE TABLE {quoted} AS", schema.empty_table())
    if query.describes:
        return
    for batch in _batches(access, schema):
        if time.monotonic() > until:
            raise timed_out()
        _insert(database, f"INSERT INTO {quoted}", pa.Table.from_batches([batch]))


def _insert(database: duckdb.DuckDBPyConnection, what: str, rows: pa.Table) -> None:
    database.register("_rows", rows)
    try:
        database.execute(f"{what} FROM _rows")
    finally:
        database.unregister("_rows")


def _batches(access: EndpointAccess, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    pick = Picker(schema, schema.names)
    with access.transaction() as transaction:
        rows = access.scan(transaction)
        while chunk := [pick(row.json) for row in islice(rows, _ROWS_AT_ONCE)]:
            columns = zip(*chunk, strict=True)
            arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _link(database: duckdb.DuckDBPyConnection, table: QueriedTable, flow: str, path: str) -> None:
    """Link a lake table: DuckDB reads only the files, columns and row groups that the query needs."""
    source = f"_lake_{flow}"
    database.register(source, _dataset(flow, path))
    database.execute(f'CREATE OR REPLACE VIEW {_quoted(table)} AS FROM "{source}"')


def _dataset(flow: str, path: str) -> Dataset:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        return DeltaTable(path).to_pyarrow_dataset()
    except TableNotFoundError:
        reason = "it has no data yet"
    except (DeltaError, OSError) as error:
        reason = str(error).replace(path, "it")[:300]
    raise RequestError("lake-unreadable", f"the lake table of flow '{flow}' cannot be read: {reason}", status=503)


def _quoted(table: QueriedTable) -> str:
    name = '"' + table.name.replace('"', '""') + '"'
    return f"{LAKE}.{name}" if table.schema else name
