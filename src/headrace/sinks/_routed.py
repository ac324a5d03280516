"""Rows with a column that names their destination, or a list of destinations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.lazy import lazy_modules
from headrace.core.schema import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F
else:
    F = lazy_modules("pyspark.sql.functions")


def names_many(rows: DataFrame, column: str) -> bool:
    """Whether the column holds lists."""
    return dict(rows.dtypes)[column] == "array<string>"


def row_for_each(rows: DataFrame, column: str) -> DataFrame:
    """A row for each destination of a list, and one without destination for an empty list."""
    if not names_many(rows, column):
        return rows
    places = F.col(quoted(column))
    return rows.withColumn(column, F.explode_outer(F.when(F.size(places) > 0, places)))


def or_else(rows: DataFrame, column: str, place: str) -> DataFrame:
    """The rows with `place` as destination where the column names none."""
    named, other = F.col(quoted(column)), F.lit(place)
    if not names_many(rows, column):
        return rows.withColumn(column, F.coalesce(named, other))
    known = F.transform(named, lambda name: F.coalesce(name, other))
    return rows.withColumn(column, F.when(F.size(named) > 0, known).otherwise(F.array(other)))
