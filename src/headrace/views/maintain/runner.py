"""Runs the texts of a view: what comes of them is held by the driver when it is small, and in files otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.core.files.state_files import StatePath, spark_path
from headrace.core.schema import quoted
from headrace.views.maintain.state import AT_HAND, ViewState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


class RelationRunner:
    """Gives names to rows: to those of a text that is run now, or of a relation that is kept."""

    def __init__(self, spark: SparkSession, state: ViewState) -> None:
        self._spark, self._state = spark, state

    def tune(self, small: bool) -> None:
        """Few changes are a few tasks: every further one costs more than it saves."""
        slots = self._spark.sparkContext.defaultParallelism
        self._spark.conf.set("spark.sql.shuffle.partitions", "2" if small else str(max(2, 2 * slots)))

    def run(self, text: str, name: str, small: bool, relation: str | None = None, columns: Sequence[str] = ()) -> int:
        """Compute rows, name them, and add their columns to a relation; how many there are."""
        rows = self._spark.sql(text)
        table = collect(rows) if small else None
        if table is not None:
            local_rows(self._spark, table, rows.schema).createOrReplaceTempView(name)
            if relation is not None:
                self._state.add(relation, table.select(columns))
            return int(table.num_rows)
        place, count = self._write(rows)
        written = self._spark.read.schema(rows.schema).parquet(spark_path(place))
        written.createOrReplaceTempView(name)
        if relation is not None:
            few = collect(written) if count <= AT_HAND else None
            if few is not None:
                self._state.add(relation, few.select(columns))
            else:
                self._state.adopt(relation, place, count)
        return count

    def bring(self, text: str, relation: str, columns: Sequence[str]) -> pa.Table | None:
        """The few rows of a text, of which some columns are added to a relation; None when they are too many."""
        table = collect(self._spark.sql(text))
        if table is not None:
            self._state.add(relation, table.select(columns))
        return table

    def show(self, relation: str, name: str, schema: StructType) -> int:
        """Name the rows that are kept; how many there are."""
        table = self._state.at_hand(relation)
        if table is not None:
            rows = local_rows(self._spark, table, schema)
        else:
            rows = self._spark.read.schema(schema).parquet(*map(spark_path, self._state.paths(relation)))
        rows.createOrReplaceTempView(name)
        return self._state.rows(relation)

    def fold(self, relation: str, text: str, small: bool) -> None:
        """Put what a text over a relation gives in the place of the relation."""
        rows = self._spark.sql(text)
        table = collect(rows) if small else None
        if table is not None:
            self._state.fold(relation, table)
        else:
            place, count = self._write(rows)
            self._state.fold(relation, place=place, count=count)

    def _write(self, rows: DataFrame) -> tuple[StatePath, int]:
        place = self._state.place()
        rows.write.parquet(spark_path(place))
        return place, self._spark.read.schema(rows.schema).parquet(spark_path(place)).count()


def local_rows(spark: SparkSession, table: pa.Table, schema: StructType | str) -> DataFrame:
    """Rows that the driver has. In one piece: behind a piece without rows Spark would not see any more."""
    return spark.createDataFrame(table.combine_chunks(), schema=schema)


def collect(rows: DataFrame) -> pa.Table | None:
    """The rows, or None when they turn out to be more than Spark lets the driver have."""
    from pyspark.errors import PySparkException

    try:
        table = nullable(rows).toArrow()
        # Spark knows more of one batch than of the next
        return table.cast(pa.schema([field.with_nullable(True) for field in table.schema]))
    except PySparkException as error:
        if "maxResultSize" in str(error):
            return None
        raise


def nullable(rows: DataFrame) -> DataFrame:
    """The rows without what Spark knows to be there within arrays and structs: a struct that is null cannot be given to
    Arrow when one of its fields never is."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    if not any(isinstance(one.dataType, ArrayType | MapType | StructType) for one in rows.schema):
        return rows
    return rows.select(*(F.col(quoted(one.name)).cast(_nullable(one.dataType)).alias(one.name) for one in rows.schema))


def _nullable(kind: DataType) -> DataType:
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(kind, StructType):
        return StructType([StructField(one.name, _nullable(one.dataType)) for one in kind])
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return ArrayType(_nullable(kind.elementType)) if isinstance(kind, ArrayType) else kind
