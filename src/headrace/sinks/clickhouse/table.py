"""The table of a ClickHouse server: its columns and key, statements about it, and rows as its documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec
import pyarrow as pa

from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.runtime.lazy import lazy_modules
from headrace.core.schema import ddl_type
from headrace.sinks._documents import as_json
from headrace.sinks._http import refusal
from headrace.sinks._latest import last_of_each
from headrace.systems.http.client import HttpClient

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql import functions as F
else:
    F = lazy_modules("pyspark.sql.functions")

_SIMPLE = {
    "boolean": "UInt8",
    "tinyint": "Int8",
    "smallint": "Int16",
    "int": "Int32",
    "bigint": "Int64",
    "float": "Float32",
    "double": "Float64",
    "date": "Date",
}


@dataclass(frozen=True)
class ClickHouseTable:
    """A table as the server describes it."""

    name: str
    engine: str
    sorting_key: str
    columns: Mapping[str, str]
    """Name to type, without `Nullable(…)`."""

    def require_columns(self, names: Sequence[str]) -> None:
        """Refuse rows with a column that the table does not have: the server would refuse every one of them."""
        for name in names:
            if name not in self.columns:
                hint = did_you_mean(name, list(self.columns), "columns of the table")
                raise ProjectError("unknown-column", f"table {self.name} has no column '{name}'", hint=hint)

    def require_key(self, key: Sequence[str]) -> None:
        """Refuse a key by which the table does not replace rows: a repeated batch would double them."""
        sorted_by = [part.strip(" `") for part in self.sorting_key.split(",")]
        if key and ("Replacing" not in self.engine or sorted_by != list(key)):
            raise ProjectError(
                "sink-needs-key",
                f"table {self.name} is a {self.engine} ordered by ({self.sorting_key}): it does not replace rows by "
                f"{', '.join(key)}",
                hint=f"create it with ENGINE = ReplacingMergeTree ORDER BY ({', '.join(map(quoted, key))}), "
                "or leave out `key`",
            )


def quoted(name: str) -> str:
    """A name as ClickHouse takes it, whatever characters it has."""
    return "`" + name.replace("\\", "\\\\").replace("`", "``") + "`"


def find_table(client: HttpClient, database: str, table: str) -> ClickHouseTable | None:
    """The table, None when it does not exist; a ProjectError when its database does not."""
    if not _rows(client, f"SELECT name FROM system.databases WHERE name = {_text(database)}"):
        raise ProjectError(
            "sink-missing", f"{client.label}: database '{database}' does not exist", hint="create it, or fix its name"
        )
    where = f"database = {_text(database)} AND"
    found = _rows(client, f"SELECT engine, sorting_key FROM system.tables WHERE {where} name = {_text(table)}")
    if not found:
        return None
    columns = _rows(client, f"SELECT name, type FROM system.columns WHERE {where} table = {_text(table)}")
    types = {name: kind.removeprefix("Nullable(").removesuffix(")") for name, kind in columns}
    return ClickHouseTable(f"{database}.{table}", found[0][0], found[0][1], types)


def knows_setting(client: HttpClient, name: str) -> bool:
    """Whether the server has a setting: servers refuse requests with one that they do not know."""
    return bool(_rows(client, f"SELECT name FROM system.settings WHERE name = {_text(name)}"))


def create(
    client: HttpClient,
    database: str,
    table: str,
    columns: pa.Schema,
    key: Sequence[str],
    sequence: str | None,
    *,
    deduplicates: bool,
) -> None:
    has_fractions = bool(_rows(client, "SELECT name FROM system.data_type_families WHERE name = 'DateTime64'"))
    statement = create_statement(database, table, columns, key, sequence, fractions=has_fractions)
    if deduplicates and not key:
        statement += " SETTINGS non_replicated_deduplication_window = 1000"
    _ask(client, statement)


def create_statement(
    database: str, table: str, columns: pa.Schema, key: Sequence[str], sequence: str | None, *, fractions: bool
) -> str:
    """The statement that creates a table; `fractions`: whether the server has DateTime64."""
    parts = []
    for field in columns:
        kind = column_type(field.type, fractions)
        # neither a key nor a version may be null, and an array cannot
        plain = field.name in (*key, sequence) or kind.startswith("Array")
        parts.append(f"{quoted(field.name)} {kind if plain else f'Nullable({kind})'}")
    version = f"({quoted(sequence)})" if sequence else ""
    engine = f"ReplacingMergeTree{version}" if key else "MergeTree"
    order = f"({', '.join(map(quoted, key))})" if key else "tuple()"
    return (
        f"CREATE TABLE IF NOT EXISTS {quoted(database)}.{quoted(table)} ({', '.join(parts)}) "
        f"ENGINE = {engine} ORDER BY {order}"
    )


def column_type(kind: pa.DataType, fractions: bool) -> str:
    """The ClickHouse type of a new column; what has none is a String."""
    if pa.types.is_decimal(kind):
        return f"Decimal({kind.precision}, {kind.scale})"
    if pa.types.is_timestamp(kind):
        return "DateTime64(6, 'UTC')" if fractions else "DateTime('UTC')"
    if (
        pa.types.is_list(kind)
        and not pa.types.is_nested(kind.value_type)
        and not pa.types.is_timestamp(kind.value_type)
    ):
        return f"Array(Nullable({column_type(kind.value_type, fractions)}))"
    return "String" if pa.types.is_nested(kind) else _SIMPLE.get(ddl_type(kind), "String")


def insert_query(database: str, table: str, columns: Sequence[str]) -> str:
    """The path of a request that inserts JSON documents."""
    names = ", ".join(map(quoted, columns))
    return f"/?query={quote(f'INSERT INTO {quoted(database)}.{quoted(table)} ({names}) FORMAT JSONEachRow')}"


def documents(
    rows: DataFrame, schema: pa.Schema, table: ClickHouseTable, key: Sequence[str], sequence: str | None
) -> DataFrame:
    """`body`, the row as JSON, and `keyed`, whether its key is complete; with a key one row per key.

    Without a key they are sorted, so that a repeated batch makes the same requests.
    """
    newest = last_of_each(rows, key, sequence) if key else rows
    values = [_value(F.col(f"`{field.name}`"), field, table).alias(field.name) for field in schema]
    complete = [F.col(f"`{name}`").isNotNull() for name in key]
    keyed = F.lit(True)
    for part in complete:
        keyed = keyed & part
    made = newest.select(as_json(F.struct(*values), nulls=True).alias("body"), keyed.alias("keyed"))
    return made if key else made.sortWithinPartitions("body")


def _value(column: Column, field: pa.Field, table: ClickHouseTable) -> Column:
    """A column as the server reads it, whatever its time zone and input settings are."""
    held = table.columns[field.name]
    if pa.types.is_timestamp(field.type) and held.startswith("DateTime"):
        instant = column.cast("timestamp")
        # a DateTime64 would take a number without quotes for ticks
        return (
            instant.cast("decimal(20,6)").cast("string") if held.startswith("DateTime64") else F.unix_seconds(instant)
        )
    if pa.types.is_list(field.type) and held.startswith("Array"):
        return F.coalesce(column, F.array().cast(ddl_type(field.type)))
    if pa.types.is_nested(field.type) and held == "String":
        return F.when(column.isNotNull(), as_json(column, nulls=True).cast("string"))
    return column


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _rows(client: HttpClient, query: str) -> list[list[str]]:
    rows: list[list[str]] = msgspec.json.decode(_ask(client, f"{query} FORMAT JSONCompact"))["data"]
    return rows


def _ask(client: HttpClient, query: str) -> bytes:
    reply = client.send("POST", "/", query.encode())
    if not reply.ok:
        raise refusal(client.label, reply)
    return reply.body
