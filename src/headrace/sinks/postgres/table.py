"""The target table: its columns and keys, whether rows fit, and how each column is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from psycopg import sql

from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.runtime.lazy import lazy_modules
from headrace.core.schema import ddl_type
from headrace.sinks._documents import as_json

if TYPE_CHECKING:
    from psycopg import Connection
    from pyspark.sql import Column, DataFrame
    from pyspark.sql import functions as F
else:
    F = lazy_modules("pyspark.sql.functions")

_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), t.typname, t.typcategory,
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AND a.attgenerated = ''
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_UNIQUE = """
SELECT array_agg(a.attname::text ORDER BY a.attname) FROM pg_index i
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])
WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indisvalid
GROUP BY i.indexrelid
"""
_SIMPLE = {
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}
_JSON = frozenset({"json", "jsonb"})
_FRACTIONS = frozenset({"float4", "float8", "numeric"})


@dataclass(frozen=True)
class TableColumn:
    """One column of a table."""

    name: str
    type: str
    typname: str
    category: str
    needed: bool
    """Whether a row needs a value for it."""


@dataclass(frozen=True)
class ServerTable:
    """A table as the server knows it."""

    schema: str
    name: str
    columns: tuple[TableColumn, ...]
    unique: tuple[tuple[str, ...], ...]
    """The columns, sorted, of each index that keeps rows apart."""

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    def column(self, name: str) -> TableColumn:
        return next(one for one in self.columns if one.name == name)


def split_name(table: str) -> tuple[str | None, str]:
    """Schema, if there is one, and name."""
    schema, dot, name = table.rpartition(".")
    return (schema if dot else None), name


def find_table(connection: Connection[Any], table: str) -> ServerTable | None:
    """The table; None if it does not exist."""
    schema, name = split_name(table)
    quoted = (sql.Identifier(schema, name) if schema else sql.Identifier(name)).as_string(connection)
    place = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.oid = to_regclass(%s)",
        (quoted,),
    ).fetchone()
    if place is None:
        return None
    columns = tuple(TableColumn(*row) for row in connection.execute(_COLUMNS, (quoted,)).fetchall())
    unique = tuple(tuple(row[0]) for row in connection.execute(_UNIQUE, (quoted,)).fetchall())
    return ServerTable(place[0], place[1], columns, unique)


def column_type(kind: pa.DataType) -> str:
    """The PostgreSQL type of a new column."""
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        inner = column_type(kind.value_type)
        return "jsonb" if inner == "jsonb" or inner.endswith("[]") else f"{inner}[]"
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return "jsonb"
    return _SIMPLE[ddl_type(kind)]


def create_statement(schema: str, name: str, columns: pa.Schema, key: Sequence[str]) -> sql.Composed:
    """The statement that creates a table for these rows."""
    parts = [sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(column_type(field.type))) for field in columns]
    if key:
        parts.append(sql.SQL("PRIMARY KEY ({})").format(identifiers(key)))
    made = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})")
    return made.format(sql.Identifier(schema, name), sql.SQL(", ").join(parts))


def identifiers(names: Sequence[str], table: str | None = None) -> sql.Composed:
    """Names, quoted, separated by commas."""
    return sql.SQL(", ").join(sql.Identifier(table, name) if table else sql.Identifier(name) for name in names)


def require_fit(table: ServerTable, rows: pa.Schema, key: Sequence[str]) -> None:
    """Refuse rows that the table cannot take."""
    known = [column.name for column in table.columns]
    shown = f"table {table.schema}.{table.name}"
    for name in rows.names:
        if name not in known:
            hint = did_you_mean(name, known, "columns of the table")
            raise ProjectError("postgres-column-missing", f"{shown} has no column '{name}'", hint=hint)
        held = table.column(name)
        if not _fits(rows.field(name).type, held):
            raise ProjectError(
                "postgres-type",
                f"column '{name}' is {ddl_type(rows.field(name).type)}, and {held.type} in {shown}",
                hint="cast it in the flow's SQL, or change the table",
            )
    lacking = [column.name for column in table.columns if column.needed and column.name not in rows.names]
    if lacking:
        raise ProjectError(
            "postgres-column-needed",
            f"{shown} wants a value for {', '.join(lacking)}, which the flow does not have",
            hint="select it, or give it a default in the table",
        )
    if key and tuple(sorted(key)) not in table.unique:
        names = ", ".join(f'"{name}"' for name in key)
        raise ProjectError(
            "postgres-key",
            f"{shown} has no primary key or unique index on exactly {', '.join(key)}, so rows cannot be replaced",
            hint=f'run: CREATE UNIQUE INDEX ON "{table.schema}"."{table.name}" ({names})',
        )


def _fits(kind: pa.DataType, held: TableColumn) -> bool:
    if held.category == "S" or pa.types.is_string(kind) or pa.types.is_null(kind):
        return True  # any text may be a uuid, a number or JSON; the server reads it
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return held.typname in _JSON
    if pa.types.is_list(kind):
        return held.typname in _JSON or held.category == "A"
    if pa.types.is_boolean(kind):
        return held.category == "B"
    if pa.types.is_binary(kind):
        return held.typname == "bytea"
    if pa.types.is_temporal(kind):
        return held.category == "D"
    if pa.types.is_floating(kind) or (pa.types.is_decimal(kind) and kind.scale > 0):
        return held.typname in _FRACTIONS
    return held.category == "N"


def as_texts(rows: DataFrame, schema: pa.Schema, table: ServerTable, *further: str) -> DataFrame:
    """The rows with every column as the server reads it from CSV. What Arrow writes well itself stays as it is.

    Columns that are not part of the table, `further`, come last.
    """
    made = []
    for field in schema:
        column = F.col(f"`{field.name}`")
        made.append(_text(column, field.type, table.column(field.name)).alias(field.name))
    return rows.select(*made, *further)


def _text(column: Column, kind: pa.DataType, held: TableColumn) -> Column:
    if pa.types.is_binary(kind):
        return _bytes(column) if held.typname == "bytea" else column.cast("string")
    if pa.types.is_list(kind) and held.category == "A":
        return _array(column, kind)
    if pa.types.is_nested(kind):
        return F.when(column.isNotNull(), as_json(column, nulls=True).cast("string"))
    return column


def _bytes(column: Column) -> Column:
    return F.concat(F.lit("\\x"), F.hex(column))


def _array(column: Column, kind: pa.DataType) -> Column:
    """`{"a","b",NULL}`, and one pair of braces more for each dimension more."""

    def element(value: Column) -> Column:
        if pa.types.is_list(kind.value_type):
            return _array(value, kind.value_type)
        if pa.types.is_nested(kind.value_type):
            text = as_json(value, nulls=True).cast("string")
        else:
            text = _bytes(value) if pa.types.is_binary(kind.value_type) else value.cast("string")
        quoted = F.concat(F.lit('"'), F.regexp_replace(text, r'(["\\])', r"\\$1"), F.lit('"'))
        return F.coalesce(F.when(value.isNotNull(), quoted), F.lit("NULL"))

    return F.concat(F.lit("{"), F.array_join(F.transform(column, element), ","), F.lit("}"))
