"""Weighted rows of a view as changes by key: what a sink that holds the view is given."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.core.endpoints import OLD, OP, Op
from headrace.core.errors import ProjectError
from headrace.core.schema import quoted
from headrace.core.tables import WEIGHT
from headrace.views.running import nullable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TWICE = "headrace: two rows of one key"


def keyed(changes: DataFrame, key: Sequence[str]) -> DataFrame:
    """One change per key, with `__op` and `__old` as `Sink.write_changes` wants them.

    Two rows of one key fail the job that reads them; within `key_conflicts` as an error that names the key.
    """
    from pyspark.sql import functions as F

    weight = F.col(WEIGHT)
    # a column that is never null in a row is null where there is no old row: `when` without an end says so to Spark
    columns = [F.when(weight != 0, F.col(quoted(name))).alias(name) for name in changes.columns if name != WEIGHT]
    row = F.struct(*columns)
    grouped = (
        nullable(changes)
        .groupBy(*(F.col(quoted(name)) for name in key))
        .agg(
            F.max(F.when(weight > 0, row)).alias("__new"),
            F.max(F.when(weight < 0, row)).alias(OLD),
            F.coalesce(F.sum(F.when(weight > 0, weight)), F.lit(0)).alias("__came"),
            F.coalesce(F.sum(F.when(weight < 0, -weight)), F.lit(0)).alias("__went"),
        )
    )
    told = F.concat(F.lit(f"{_TWICE} "), F.to_json(F.struct(*(F.col(quoted(name)) for name in key))), F.lit(" (end)"))
    once = (F.col("__came") <= 1) & (F.col("__went") <= 1)
    op = F.when(F.col("__new").isNull(), int(Op.DELETE)).when(F.col(OLD).isNull(), int(Op.INSERT))
    return (
        grouped.where(F.when(once, True).otherwise(F.raise_error(told).cast("boolean")))
        .withColumn("__row", F.coalesce("__new", OLD))
        .select("__row.*", op.otherwise(int(Op.UPDATE)).cast("tinyint").alias(OP), OLD)
    )


@contextmanager
def key_conflicts(key: Sequence[str] = ()) -> Iterator[None]:
    """Tells of two rows of one key as an error that a user can mend."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        found = re.search(rf"{_TWICE} (.*?) \(end\)", str(error), re.DOTALL)
        if found is None:
            raise
        raise ProjectError(
            "view-key",
            f"the view has two rows with the key {found[1]}",
            hint=f"declare columns that identify a row ({', '.join(key)} do not), or leave `key` out",
        ) from error
