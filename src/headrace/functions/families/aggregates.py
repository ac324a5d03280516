"""Aggregates. They use collect_list and collect_set of Spark, so they keep state like these: all values of a group are
in memory at once."""

from __future__ import annotations

from headrace.functions.function import Function, FunctionCall
from headrace.functions.template import fill


def _collect_array(call: FunctionCall) -> str:
    collect = "collect_set" if call.distinct else "collect_list"
    return call.aggregate(fill(f"{collect}(:v)", v=call.args[0].typed("STRING")))


_PLACE = "(CAST(:p AS DOUBLE) * (array_size(:a) + 1) / 100)"
_PERCENTILE = f"""CASE WHEN array_size(:a) = 0 THEN NULL WHEN {_PLACE} < 1 THEN :a[0]
 WHEN {_PLACE} >= array_size(:a) THEN :a[array_size(:a) - 1]
 ELSE :a[CAST(floor({_PLACE}) AS INT) - 1] + ({_PLACE} - floor({_PLACE}))
 * (:a[CAST(floor({_PLACE}) AS INT)] - :a[CAST(floor({_PLACE}) AS INT) - 1]) END""".replace("\n", "")


def _percentile(call: FunctionCall) -> str:
    if call.distinct:
        raise call.error("DISTINCT has no meaning here")
    percent = call.number(0)
    if percent is not None and not 0 <= percent <= 100:
        raise call.error(f"a percentile lies between 0 and 100, not at {percent:g}")
    values = call.aggregate(fill("collect_list(CAST(:v AS DOUBLE))", v=call.args[1]))
    # a group has one percentile; if it is a column, Spark needs an aggregate of it
    wanted = call.args[0].sql if percent is not None else call.aggregate(fill("max(:p)", p=call.args[0]))
    return fill(_PERCENTILE, a=f"array_sort({values})", p=wanted)


def _distinct_count(call: FunctionCall) -> str:
    # Spark does not count DISTINCT values of a stream
    return f"size({call.aggregate(fill('collect_set(:v)', v=call.args[0].typed('STRING')))})"


FUNCTIONS = (
    Function(
        "CollectArray",
        ("value T -> ARRAY<T>",),
        "All values of a group as an array, in any order; NULL values are dropped. "
        "`CollectArray(DISTINCT value)` has each value once.",
        "CollectArray(value)",
        "[1, 2, 2]",
        _collect_array,
        kind="aggregate",
    ),
    Function(
        "DistinctCount",
        ("value T -> INT",),
        "The number of distinct values of a group; NULL does not count.",
        "DistinctCount(customer)",
        "2",
        _distinct_count,
        kind="aggregate",
    ),
    Function(
        "PercentileAggregator",
        ("percent NUMBER, value NUMBER -> DOUBLE",),
        "The value at p·(n+1)/100 of the n sorted values, with linear interpolation between two values; the smallest "
        "value before the first place, the largest after the last. NULL values do not count; NULL without values. If "
        "the percentile is a column, the largest of the group counts.",
        "PercentileAggregator(90, value)",
        "7.0",
        _percentile,
        kind="aggregate",
    ),
)
