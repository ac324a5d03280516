"""The rows of a captured table, read by Spark from its log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.core.errors import Exit, ProjectError
from headrace.core.files.state_files import StatePath, spark_path
from headrace.core.schema import to_ddl
from headrace.core.tables import WEIGHT, TableShape
from headrace.log.tables import table_log
from headrace.project.loader import Project

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def weighted_rows(spark: SparkSession, shape: TableShape, files: Sequence[StatePath]) -> DataFrame:
    """Weighted rows in files of a log. A column that was added later is null in older files."""
    schema = to_ddl(shape.weighted)
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*(spark_path(file) for file in files))


def consolidated(rows: DataFrame) -> DataFrame:
    """Each row once, with the sum of its weights; rows with weight 0 are removed."""
    from pyspark.sql import functions as F

    columns = [f"`{name}`" for name in rows.columns if name != WEIGHT]
    return rows.groupBy(*columns).agg(F.sum(WEIGHT).alias(WEIGHT)).where(f"{WEIGHT} <> 0")


def register_table(spark: SparkSession, project: Project, name: str) -> None:
    """Register the current contents of a captured table as a temporary view under its name."""
    log = table_log(project.context, project.spec.tables[name].source.group)
    shape = log.shapes().get(name)
    if shape is None:
        raise ProjectError(
            "table-not-captured",
            f"table '{name}' has not been captured yet",
            where=project.origin("tables", name),
            hint="run a flow that reads it: headrace run",
            exit_code=Exit.NOT_FOUND,
        )
    rows = consolidated(weighted_rows(spark, shape, log.state(name, log.end())))
    rows.drop(WEIGHT).createOrReplaceTempView(name)
