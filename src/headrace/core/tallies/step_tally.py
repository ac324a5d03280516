"""Counters of steps in Spark tasks, for the engine's metrics. They arrive when a task succeeds."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator

    from headrace.core.tallies._step_accumulator import Counts

LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the latency buckets in seconds; one more bucket has no bound."""
LATENCY, LATENCY_SUM = "latency:", "latency_us"
BYTES_IN = "bytes_in"
"""The size of a decoder's input records in bytes."""
_LATENCY_NAMES = (*(f"{LATENCY}{bound}" for bound in LATENCIES), f"{LATENCY}+Inf")


@dataclass
class StepTally:
    """The counters of one step. Pickled to the tasks while empty."""

    flow: str
    step: str
    _accumulator: Accumulator[Counts] | None = None
    counts: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def of(flow: str, step: str) -> StepTally:
        """Create a tally in the driver, connected to the engine's metrics. Without Spark it only counts."""
        if "pyspark" not in sys.modules:
            return StepTally(flow, step)
        from headrace.core.tallies._step_accumulator import accumulator

        return StepTally(flow, step, accumulator())

    def add(self, outcome: str, number: int = 1) -> None:
        self.counts[outcome] += number

    def took(self, seconds: float) -> None:
        """Record the duration of a call."""
        self.counts[_LATENCY_NAMES[bisect_left(LATENCIES, seconds)]] += 1
        self.counts[LATENCY_SUM] += round(seconds * 1_000_000)

    def flush(self) -> None:
        """Send the counts to the engine and reset them."""
        if self._accumulator is not None and self.counts:
            self._accumulator.add({(self.flow, self.step, name): number for name, number in self.counts.items()})
            self.counts.clear()


def step_counts() -> Counts:
    """Return the counts of all steps of this engine, by flow, step and outcome."""
    if "headrace.core.tallies._step_accumulator" not in sys.modules:
        return {}
    from headrace.core.tallies._step_accumulator import task_counts

    return task_counts()
