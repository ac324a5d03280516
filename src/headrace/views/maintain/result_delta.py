"""The delta of a view's result in one batch: a small one is collected to the driver, a large one stays in Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.core.records import spark_schema
from headrace.views.algebra.sql_text import SMALL_BATCH
from headrace.views.maintain.runner import collect, local_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class ResultDelta:
    """Consolidated weighted rows."""

    collected: pa.Table | None
    """The rows, if the driver has them."""
    _make_frame: Callable[[], DataFrame]

    @cached_property
    def frame(self) -> DataFrame:
        return self._make_frame()

    def rows(self) -> list[tuple[Any, ...]]:
        table = self.frame.toArrow() if self.collected is None else self.collected
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def result_delta(spark: SparkSession, frame: DataFrame, small: bool) -> ResultDelta:
    """The rows of a frame, collected if the batch is `small` and the result is small too."""
    table = collect(frame) if small else None
    if table is None:
        return ResultDelta(None, lambda: frame)
    collected = table.cast(spark_schema(frame)) if table.num_rows <= SMALL_BATCH else None
    return ResultDelta(collected, lambda: local_rows(spark, table, frame.schema))
