"""Counters that steps keep in the tasks, for the metrics of the engine. They arrive when a task ends well."""

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
"""Upper bounds of the classes of latency, in seconds; what takes longer is in a last class."""
LATENCY, LATENCY_SUM = "latency:", "latency_us"
BYTES_IN = "bytes_in"
"""The bytes of the records that a stream's decoder was given."""
_LATENCY_NAMES = (*(f"{LATENCY}{bound}" for bound in LATENCIES), f"{LATENCY}+Inf")


@dataclass
class StepTally:
    """What one step counts. Pickled to the tasks while empty."""

    flow: str
    step: str
    _accumulator: Accumulator[Counts] | None = None
    counts: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def of(flow: str, step: str) -> StepTally:
        """Made by the driver, so that the engine hears of it; without Spark it only counts."""
        if "pyspark" not in sys.modules:
            return StepTally(flow, step)
        from headrace.core.tallies._step_accumulator import accumulator

        return StepTally(flow, step, accumulator())

    def add(self, outcome: str, number: int = 1) -> None:
        """Count something."""
        self.counts[outcome] += number

    def took(self, seconds: float) -> None:
        """Count how long a call took."""
        self.counts[_LATENCY_NAMES[bisect_left(LATENCIES, seconds)]] += 1
        self.counts[LATENCY_SUM] += round(seconds * 1_000_000)

    def flush(self) -> None:
        """Hand over what was counted."""
        if self._accumulator is not None and self.counts:
            self._accumulator.add({(self.flow, self.step, name): number for name, number in self.counts.items()})
            self.counts.clear()


def step_counts() -> Counts:
    """What the steps of this engine have counted, by flow, step and outcome."""
    if "headrace.core.tallies._step_accumulator" not in sys.modules:
        return {}
    from headrace.core.tallies._step_accumulator import counted

    return counted()
