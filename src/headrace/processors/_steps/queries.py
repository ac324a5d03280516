"""SQL over the rows of a step: they are the table `rows`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from headrace.core.filters import ColumnFilter
from headrace.sql.columns import unknown_columns
from headrace.sql.input_reads import input_reads
from headrace.sql.query import Query, SqlError, parse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

ROWS = "rows"


def condition(text: str) -> str:
    """The query of a condition; a ValueError says what is wrong with it."""
    # on its own line: the condition may end with a comment
    query = f"SELECT * FROM {ROWS} WHERE (\n{text}\n)"
    try:
        parsed = parse(query)
    except SqlError as error:
        raise ValueError(f"not a condition: {error.message}") from None
    if len(parsed.inputs) > 1:
        raise ValueError("a condition cannot have a query inside it")
    return query


def filters_of(query: str, schema: pa.Schema) -> tuple[ColumnFilter, ...] | None:
    """The condition as filters of an Arrow batch; None if only Spark can evaluate it."""
    where = parse(query).tree.args["where"].this.unnest()
    parts = [part.unnest() for part in where.flatten()] if isinstance(where, exp.And) else [where]
    filters = [_filter(part, schema) for part in parts]
    return None if None in filters else tuple(filter_ for filter_ in filters if filter_ is not None)


def _filter(part: exp.Expr, schema: pa.Schema) -> ColumnFilter | None:
    columns = list(part.find_all(exp.Column))
    if len(columns) != 1 or len(columns[0].parts) != 1 or columns[0].name not in schema.names:
        return None
    field = schema.field(columns[0].name)
    match part:
        case exp.Column() if pa.types.is_boolean(field.type):
            return ColumnFilter(field.name, "is true")
        case exp.Is(this=exp.Column(), expression=exp.Null()):
            return ColumnFilter(field.name, "is null")
    return ColumnFilter.from_sql(part, field)


def column_names(text: str) -> frozenset[str]:
    """Every word that may name a column."""
    return parse(text).words


def used(query: Query, schema: pa.Schema) -> tuple[str, ...] | None:
    """The columns a query uses; None for all."""
    return input_reads(query, {ROWS: schema})[ROWS].columns


def check_columns(query: Query, schema: pa.Schema) -> None:
    """Refuse a query that uses an unknown column."""
    for error in unknown_columns(query, {ROWS: schema}):
        raise error


@contextmanager
def rows_table(rows: DataFrame) -> Iterator[None]:
    """Makes the rows the table `rows` inside the block; an input of that name is restored after it."""
    catalog = rows.sparkSession.catalog
    before = rows.sparkSession.table(ROWS) if catalog.tableExists(ROWS) else None
    rows.createOrReplaceTempView(ROWS)
    try:
        yield
    finally:
        if before is None:
            catalog.dropTempView(ROWS)
        else:
            before.createOrReplaceTempView(ROWS)
