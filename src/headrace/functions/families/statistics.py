"""Statistics over the values of a window: trends and moving averages, minute by minute."""

from __future__ import annotations

from headrace.functions.function import Argument, Function, FunctionCall
from headrace.functions.template import fill

_SLOTS = (
    "array_sort(filter(transform(zip_with(:times, :values, (_t, _v) -> named_struct("
    "'_slot', CAST(floor((unix_micros(CAST(_t AS TIMESTAMP)) - unix_micros(CAST(:start AS TIMESTAMP))) / 60000000) "
    "AS BIGINT), '_v', CAST(_v AS DOUBLE))), "
    "(_e, _i) -> named_struct('_slot', _e._slot, '_i', _i, '_v', _e._v)), "
    "_e -> _e._v IS NOT NULL AND _e._slot >= 0 AND _e._slot < :window))"
)
_LAST = "filter(:slots, (_e, _i) -> coalesce(try_element_at(:slots, _i + 2)._slot > _e._slot, true))"
_TREND = (
    "aggregate(:points, named_struct('_y', CAST(0 AS DOUBLE), '_iy', CAST(0 AS DOUBLE)), "
    "(_s, _e) -> named_struct('_y', _s._y + _e._v, '_iy', _s._iy + _e._slot * _e._v), "
    "_s -> (_s._iy - (:window - 1) / 2 * _s._y) / nullif(CAST(:window AS DOUBLE) * (:window * :window - 1) / 12, 0))"
)
_AVERAGE = (
    "aggregate(:points, CAST(0 AS DOUBLE), (_s, _e) -> _s + _e._v * pow(1 - CAST(:alpha AS DOUBLE), "
    ":window - 1 - _e._slot) * CASE WHEN _e._slot = 0 THEN 1 ELSE CAST(:alpha AS DOUBLE) END)"
)


def _points(call: FunctionCall, window: str) -> str:
    """The last value of each minute after the start; others are dropped."""
    times, values, start = call.args[0].typed("ARRAY<TIMESTAMP>"), call.args[1].typed("ARRAY<DOUBLE>"), call.args[2]
    return fill(_LAST, slots=fill(_SLOTS, times=times, values=values, start=start, window=window))


def _whole(window: Argument) -> str:
    return fill("CAST(:w AS BIGINT)", w=window)


def _check_window(call: FunctionCall) -> None:
    minutes = call.number(3)
    if minutes is not None and minutes < 1:
        raise call.error(f"a window has at least one minute, not {minutes:g}")


def _linear_trend(call: FunctionCall) -> str:
    _check_window(call)
    window = _whole(call.args[3])
    return fill(_TREND, points=_points(call, window), window=window)


def _moving_average(call: FunctionCall) -> str:
    _check_window(call)
    alpha = call.number(4)
    if alpha is not None and not 0 <= alpha <= 1:
        raise call.error(f"alpha lies between 0 and 1, not at {alpha:g}")
    window = _whole(call.args[3])
    return fill(_AVERAGE, points=_points(call, window), window=window, alpha=call.args[4])


_MINUTES = (
    "Times and values are paired by position; a value counts for its whole minute after the start, the last value of a "
    "minute wins, and values that are NULL or outside the window are dropped."
)

FUNCTIONS = (
    Function(
        "LinearTrend",
        ("times ARRAY<TIMESTAMP>, values ARRAY<DOUBLE>, start TIMESTAMP, minutes INT -> DOUBLE",),
        f"The slope per minute of the best-fitting straight line; a minute without a value is 0. {_MINUTES} NULL for "
        "a window of one minute.",
        "LinearTrend(times, values, window.start, 5)",
        "1.0",
        _linear_trend,
    ),
    Function(
        "ExponentialMovingAverage",
        ("times ARRAY<TIMESTAMP>, values ARRAY<DOUBLE>, start TIMESTAMP, minutes INT, alpha DOUBLE -> DOUBLE",),
        "The sum of v·α·(1-α)^p over the minutes, p counted back from the last one; of the first minute v·(1-α)^p. "
        f"{_MINUTES} 0 when there are none.",
        "ExponentialMovingAverage(times, values, window.start, 6, 0.2)",
        "2.36256",
        _moving_average,
    ),
)
