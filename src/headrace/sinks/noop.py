"""`type: noop`: computes all rows and writes none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from headrace.core.capabilities import AppendsAfterSwitch, Candidate, DescribesRewind, HoldsView, ReadsAllRows, Rewind
from headrace.core.context import Batch
from headrace.core.rows import drain
from headrace.core.sink import Delivery

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame


class NoopSink(HoldsView, DescribesRewind, AppendsAfterSwitch, ReadsAllRows):
    """Computes every row and writes none: for measuring a flow without its destination.

    Delivery: best effort; no row is written. Order: none. Scale: whatever the flow can do. Not for real-time flows:
    Spark refuses it there.
    """

    type: Literal["noop"] = "noop"

    @property
    def guarantee(self) -> Delivery:
        return "best_effort"

    def write_batch(self, rows: DataFrame, batch: Batch) -> None:
        drain(rows)

    def write_changes(self, changes: DataFrame, key: Sequence[str], batch: Batch) -> None:
        drain(changes)

    def rewind_effect(self, rewind: Rewind, replace: bool) -> str:
        return f"{rewind.read_again}: nothing is kept here"

    def candidate_effect(self, candidate: Candidate) -> str:
        return "nothing is kept here"
