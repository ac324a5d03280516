"""`type: noop`: reads everything, keeps nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from headrace.core.context import Batch
from headrace.core.rows import drain
from headrace.core.sink import Delivery, Rewind, Side, Sink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame


class NoopSink(Sink):
    """Computes every row and writes none: for measuring a flow without its destination.

    Delivery: best effort; no row is written. Order: none. Scale: whatever the flow can do. Not for real-time flows:
    Spark refuses it there.
    """

    reads_all: ClassVar[bool] = True
    takes_changes: ClassVar[bool] = True

    type: Literal["noop"] = "noop"

    @property
    def guarantee(self) -> Delivery:
        """Nothing arrives anywhere."""
        return "best_effort"

    def write_batch(self, rows: DataFrame, batch: Batch) -> None:
        """Read the batch."""
        drain(rows)

    def write_changes(self, changes: DataFrame, key: Sequence[str], batch: Batch) -> None:
        """Read the changes."""
        drain(changes)

    def rewind_effect(self, rewind: Rewind, replace: bool) -> str:
        """There is nothing to have an effect on."""
        return f"{rewind.words}: nothing is kept here"

    def beside_effect(self, side: Side) -> str:
        """There is nothing to have an effect on."""
        return "nothing is kept here"
