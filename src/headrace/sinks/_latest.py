"""The last of several rows of a batch with one key, or all of them in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.core.lazy import lazy_modules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F
else:
    F = lazy_modules("pyspark.sql.functions")


def last_of_each(records: DataFrame, keys: Sequence[str], sequence: str | None) -> DataFrame:
    """One record per key: that with the greatest sequence, else the last one of the last partition that has the key.

    A repeated batch gives the same records. Records without a key all stay.
    """
    parts = [F.col(f"`{name}`") for name in keys]
    numbered = records.withColumn("__number", F.monotonically_increasing_id())
    whole = F.struct(*(F.col(f"`{name}`") for name in records.columns))
    order = F.struct(*([F.col(f"`{sequence}`")] if sequence else []), F.col("__number"))
    missing = F.coalesce(*(F.when(part.isNull(), F.col("__number")) for part in parts))
    named = [part.alias(f"__key{number}") for number, part in enumerate(parts)]
    groups = numbered.groupBy(*named, missing.alias("__missing"))
    return groups.agg(F.max_by(whole, order).alias("__last")).select("__last.*")


def in_order_of_each(records: DataFrame, keys: Sequence[str], sequence: str | None) -> DataFrame:
    """All records, those of a key in one partition, ordered by `sequence` and then by input order.

    A repeated batch gives the same order.
    """
    named = [f"`{name}`" for name in keys]
    numbered = records.withColumn("__number", F.monotonically_increasing_id())
    order = [*named, *([f"`{sequence}`"] if sequence else []), "__number"]
    return numbered.repartition(*named).sortWithinPartitions(*order).drop("__number")
