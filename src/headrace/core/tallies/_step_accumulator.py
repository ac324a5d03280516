"""Spark's way of bringing numbers from tasks to the engine."""

from __future__ import annotations

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam

Counts = dict[tuple[str, str, str], int]

_made: tuple[SparkContext, Accumulator[Counts]] | None = None


class _Sums(AccumulatorParam[Counts]):
    """Adds up by name. A new dict each time: who reads the old one meanwhile is not disturbed."""

    def zero(self, value: Counts) -> Counts:
        return {}

    def addInPlace(self, value1: Counts, value2: Counts) -> Counts:  # noqa: N802
        return {**value1, **{name: value1.get(name, 0) + number for name, number in value2.items()}}


def accumulator() -> Accumulator[Counts] | None:
    """The one of this engine; None where no Spark runs. Called by the driver only."""
    global _made
    context = SparkContext._active_spark_context
    if context is None:
        return None
    if _made is None or _made[0] is not context:
        _made = context, context.accumulator({}, _Sums())
    return _made[1]


def counted() -> Counts:
    """What all tasks that have ended have counted."""
    return {} if _made is None else _made[1].value
