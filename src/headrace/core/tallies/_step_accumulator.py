"""The Spark accumulator that brings the counters of tasks to the engine."""

from __future__ import annotations

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam

Counts = dict[tuple[str, str, str], int]

_current: tuple[SparkContext, Accumulator[Counts]] | None = None


class _Sums(AccumulatorParam[Counts]):
    """Adds up counts by name. Each sum is a new dict, so that readers of the old one see no change."""

    def zero(self, value: Counts) -> Counts:
        return {}

    def addInPlace(self, value1: Counts, value2: Counts) -> Counts:  # noqa: N802
        return {**value1, **{name: value1.get(name, 0) + number for name, number in value2.items()}}


def accumulator() -> Accumulator[Counts] | None:
    """Return the accumulator of this engine; None when Spark does not run. Call it in the driver only."""
    global _current
    context = SparkContext._active_spark_context
    if context is None:
        return None
    if _current is None or _current[0] is not context:
        _current = context, context.accumulator({}, _Sums())
    return _current[1]


def task_counts() -> Counts:
    """Return the counts of all tasks that have ended."""
    return {} if _current is None else _current[1].value
