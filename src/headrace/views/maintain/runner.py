"""Runs the queries of a view. Small results are held in the driver, large ones in files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.core.files.state_files import StatePath, spark_path
from headrace.core.schema import quoted
from headrace.views.maintain.state import IN_MEMORY_ROWS, ViewState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


class RelationRunner:
    """Runs queries and registers their rows, or stored relations, as temporary views of Spark."""

    def __init__(self, spark: SparkSession, state: ViewState) -> None:
        self._spark, self._state = spark, state

    def tune(self, small: bool) -> None:
        """Sets the number of shuffle tasks: for a small batch, more tasks cost more than they save."""
        slots = self._spark.sparkContext.defaultParallelism
        self._spark.conf.set("spark.sql.shuffle.partitions", "2" if small else str(max(2, 2 * slots)))

    def run(self, query: str, name: str, small: bool, relation: str | None = None, columns: Sequence[str] = ()) -> int:
        """Run a query, register its rows as `name`, and add `columns` to a stored relation; returns the row count."""
        rows = self._spark.sql(query)
        table = collect(rows) if small else None
        if table is not None:
            local_rows(self._spark, table, rows.schema).createOrReplaceTempView(name)
            if relation is not None:
                self._state.add(relation, table.select(columns))
            return int(table.num_rows)
        folder, count = self._write(rows)
        written = self._spark.read.schema(rows.schema).parquet(spark_path(folder))
        written.createOrReplaceTempView(name)
        if relation is not None:
            collected = collect(written) if count <= IN_MEMORY_ROWS else None
            if collected is not None:
                self._state.add(relation, collected.select(columns))
            else:
                self._state.add_written(relation, folder, count)
        return count

    def collect_into(self, query: str, relation: str, columns: Sequence[str]) -> pa.Table | None:
        """Collect the rows of a query, and add `columns` to a stored relation; None if they are too many."""
        table = collect(self._spark.sql(query))
        if table is not None:
            self._state.add(relation, table.select(columns))
        return table

    def register(self, relation: str, name: str, schema: StructType) -> int:
        """Register the rows of a stored relation as `name`; returns the row count."""
        table = self._state.in_memory(relation)
        if table is not None:
            rows = local_rows(self._spark, table, schema)
        else:
            rows = self._spark.read.schema(schema).parquet(*map(spark_path, self._state.paths(relation)))
        rows.createOrReplaceTempView(name)
        return self._state.rows(relation)

    def consolidate(self, relation: str, query: str, small: bool) -> None:
        """Replace a stored relation by the result of a query over it."""
        rows = self._spark.sql(query)
        table = collect(rows) if small else None
        if table is not None:
            self._state.consolidate(relation, table)
        else:
            folder, count = self._write(rows)
            self._state.consolidate(relation, folder=folder, count=count)

    def _write(self, rows: DataFrame) -> tuple[StatePath, int]:
        folder = self._state.new_folder()
        rows.write.parquet(spark_path(folder))
        return folder, self._spark.read.schema(rows.schema).parquet(spark_path(folder)).count()


def local_rows(spark: SparkSession, table: pa.Table, schema: StructType | str) -> DataFrame:
    """Rows of the driver as a frame. In one chunk: Spark stops reading at an empty chunk."""
    return spark.createDataFrame(table.combine_chunks(), schema=schema)


def collect(rows: DataFrame) -> pa.Table | None:
    """The rows, or None if they exceed Spark's limit of a result in the driver."""
    from pyspark.errors import PySparkException

    try:
        table = nullable(rows).toArrow()
        # nullability differs from batch to batch
        return table.cast(pa.schema([field.with_nullable(True) for field in table.schema]))
    except PySparkException as error:
        if "maxResultSize" in str(error):
            return None
        raise


def nullable(rows: DataFrame) -> DataFrame:
    """The rows with all nested fields nullable: Arrow refuses a null struct that has a NOT NULL field."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    if not any(isinstance(field.dataType, ArrayType | MapType | StructType) for field in rows.schema):
        return rows
    return rows.select(
        *(F.col(quoted(field.name)).cast(_nullable(field.dataType)).alias(field.name) for field in rows.schema)
    )


def _nullable(kind: DataType) -> DataType:
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _nullable(field.dataType)) for field in kind])
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return ArrayType(_nullable(kind.elementType)) if isinstance(kind, ArrayType) else kind
