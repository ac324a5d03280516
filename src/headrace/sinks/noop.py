"""`type: noop`: reads everything, keeps nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from headrace.core.context import Batch
from headrace.core.sink import Delivery, Sink
from headrace.sinks._rows import drain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class NoopSink(Sink):
    """Computes every row and writes none: for measuring a flow without its destination.

    Delivery: none. Order: none. Scale: whatever the flow can do. Not for real-time flows: Spark refuses it there.
    """

    type: Literal["noop"] = "noop"

    @property
    def guarantee(self) -> Delivery:
        """Nothing arrives anywhere."""
        return "best_effort"

    def write_batch(self, rows: DataFrame, batch: Batch) -> None:
        """Read the batch."""
        drain(rows)
