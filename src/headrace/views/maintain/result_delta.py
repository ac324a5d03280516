"""What a batch changes in the result of a view: few rows are brought to the driver, many stay with Spark."""

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
    """Weighted rows, each once."""

    few: pa.Table | None
    """The rows, where the driver has them."""
    _made: Callable[[], DataFrame]

    @cached_property
    def frame(self) -> DataFrame:
        """The rows as Spark has them."""
        return self._made()

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows in Python."""
        table = self.frame.toArrow() if self.few is None else self.few
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def result_delta(spark: SparkSession, frame: DataFrame, small: bool) -> ResultDelta:
    """The rows of a frame, brought here when the batch is `small` and they are few themselves."""
    table = collect(frame) if small else None
    if table is None:
        return ResultDelta(None, lambda: frame)
    few = table.cast(spark_schema(frame)) if table.num_rows <= SMALL_BATCH else None
    return ResultDelta(few, lambda: local_rows(spark, table, frame.schema))
