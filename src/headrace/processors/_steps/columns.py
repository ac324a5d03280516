"""Columns and fields of structs by their dotted names, in Arrow and in Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.processor import require
from headrace.core.schema import ddl_type, from_ddl, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def typed_columns(ddl: str) -> None:
    """Raise a ValueError for a text that is not a list of columns with types."""
    try:
        from_ddl(ddl)
    except ProjectError as error:
        raise ValueError(error.message) from None


def heads(paths: Iterable[str]) -> frozenset[str]:
    """The columns that these names may mean: `driver.name` is a field of `driver`, or a column of that name."""
    return frozenset(name for path in paths for name in (path, path.partition(".")[0]))


def split(path: str, columns: Collection[str]) -> tuple[str, list[str]]:
    """The column of a dotted name, and the fields below it."""
    if path in columns:
        return path, []
    head, *fields = path.split(".")
    return head, fields


def type_of(schema: pa.Schema, path: str, step: str) -> pa.DataType:
    """The type of a column or field; null if it is unknown. A ProjectError if the column does not exist."""
    require(schema, [path], step)
    head, fields = split(path, schema.names)
    kind = schema.field(head).type
    for field in fields:
        if pa.types.is_null(kind):
            return kind
        names = [part.name for part in kind] if pa.types.is_struct(kind) else []
        if field not in names:
            raise ProjectError(
                "unknown-column",
                f"'{step}' uses '{path}', which has no field '{field}'",
                hint=did_you_mean(field, names, f"fields of '{head}'"),
            )
        kind = kind.field(field).type
    return kind


def with_type(schema: pa.Schema, name: str, kind: pa.DataType) -> pa.Schema:
    """The schema with a column added, or with another type at its place."""
    index = schema.get_field_index(name)
    field = pa.field(name, kind)
    return schema.append(field) if index < 0 else schema.set(index, field)


def check_document(schema: pa.Schema, name: str, step: str) -> None:
    """Refuse a column that cannot hold JSON."""
    kind = type_of(schema, name, step)
    if not (pa.types.is_null(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise ProjectError(
            "step-type",
            f"'{step}' expects JSON in '{name}', which is of type {ddl_type(kind)}",
            hint="a document is a string: read the stream with format {type: raw, as: string}",
        )


def check_truth(schema: pa.Schema, name: str, step: str) -> None:
    """Refuse a column that is not a boolean."""
    kind = type_of(schema, name, step)
    if not (pa.types.is_null(kind) or pa.types.is_boolean(kind)):
        raise ProjectError(
            "step-type",
            f"'{step}' expects a boolean in '{name}', which is of type {ddl_type(kind)}",
            hint="add a 'sql' step that compares it, e.g. kind = 'repeat' AS repeated",
        )


def check_key(kind: pa.DataType, name: str, step: str) -> None:
    """Refuse a key of a type that Spark cannot hash."""
    if pa.types.is_map(kind):
        raise ProjectError(
            "step-type",
            f"'{step}' cannot use '{name}' as a key: it is of type {ddl_type(kind)}",
            hint="a key is a text, a number, a time or a struct of such",
        )


def column_of(batch: pa.RecordBatch, path: str) -> pa.Array:
    """A column, or a field of a struct."""
    if path in batch.schema.names:
        return batch.column(path)
    head, *fields = path.split(".")
    column = batch.column(head)
    for field in fields:
        column = pc.struct_field(column, field)
    return column


def column(rows: DataFrame, path: str) -> Column:
    from pyspark.sql import functions as F

    head, fields = split(path, rows.columns)
    return F.col(".".join(quoted(part) for part in (head, *fields)))


def replaced(rows: DataFrame, path: str, make: Callable[[Column], Column]) -> DataFrame:
    """The rows with a new value in a column or field. A null struct stays null."""
    from pyspark.sql import functions as F

    head, fields = split(path, rows.columns)
    value = make(column(rows, path))
    if not fields:
        return rows.withColumn(head, value)
    return rows.withColumn(head, F.col(quoted(head)).withField(".".join(quoted(field) for field in fields), value))
