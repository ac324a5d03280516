"""The time at which a row is processed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from pydantic import Field

from headrace.core.processor import Processor, StepContext
from headrace.core.schema import TIMESTAMP
from headrace.processors._steps.columns import with_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Now(Processor):
    """Adds a column with the time at which the row's batch was planned.

    All rows of a batch have the same time. It is recorded before the batch runs, so a batch that runs again after a
    crash gives the same time; a rewind or a replay of dead letters is a new batch with a new time. Real-time flows
    cannot use it: their batches last minutes. Order and number of rows stay.
    """

    type: Literal["now"] = "now"
    column: str = Field("processed_at", min_length=1, description="The column.", examples=["processed_at"])

    @property
    def label(self) -> str:
        return f"now as {self.column}"

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        return None if wanted is None else wanted - {self.column}

    def output(self, schema: pa.Schema) -> pa.Schema:
        return with_type(schema, self.column, TIMESTAMP)

    def apply(self, rows: DataFrame, at: StepContext) -> DataFrame:
        """Spark's current timestamp, which in a stream is the time of the batch."""
        from pyspark.sql import functions as F

        return rows.withColumn(self.column, F.current_timestamp())
