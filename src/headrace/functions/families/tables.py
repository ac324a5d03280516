"""Functions that return several rows: `FROM t LATERAL VIEW f(x) v AS a, b`, or `FROM t, LATERAL f(x) AS v(a, b)`.

A row without results is dropped, unless it is LATERAL VIEW OUTER or LEFT JOIN LATERAL.
"""

from __future__ import annotations

from headrace.functions.function import Function, FunctionCall
from headrace.functions.template import fill


def _histogram_bucket(call: FunctionCall) -> str:
    written = call.text(1)
    for bucket in [] if written is None else written.split(","):
        if not _is_number(bucket):
            raise call.error(f"'{bucket.strip()}' is not a number")
    rows = fill(
        "CASE WHEN :d IS NOT NULL THEN transform(concat(array('+Inf'), filter(transform(split(:b, ','), "
        "_e -> trim(_e)), _e -> CAST(_e AS DOUBLE) >= CAST(:d AS DOUBLE))), _e -> named_struct('bucket', _e)) END",
        d=call.args[0],
        b=call.args[1],
    )
    return f"inline({rows})"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _let(name: str, value: str, body: str) -> str:
    """`body` with a variable `name` whose value is computed once."""
    return f"element_at(transform(array({value}), {name} -> {body}), 1)"


def _median(values: str) -> str:
    """The median of a sorted array; NULL if it is empty."""
    low = "nullif(CAST((array_size(_m) + 1) div 2 AS INT), 0)"
    high = "CAST(array_size(_m) div 2 + 1 AS INT)"
    return _let("_m", values, f"(try_element_at(_m, {low}) + try_element_at(_m, {high})) / 2")


def _deviation(values: str) -> str:
    """The median absolute deviation of sorted values."""
    distances = _let("_c", _median("_d"), "array_sort(transform(_d, _e -> abs(_e - _c)))")
    return _let("_d", values, _median(distances))


_POINTS = (
    "array_sort(filter(zip_with(:times, :values, (_t, _v) -> named_struct('_t', CAST(_t AS TIMESTAMP), "
    "'_v', CAST(_v AS DOUBLE))), _e -> _e._t IS NOT NULL AND _e._v IS NOT NULL))"
)
_SEEN = (
    "filter(_p, _e -> unix_micros(_e._t) >= unix_micros(CAST(:start AS TIMESTAMP)) + "
    "(CAST(:window AS BIGINT) - CAST(:observed AS BIGINT)) * 60000000)"
)
_MAD = "CASE WHEN _e._v <= _b._median THEN _b._low ELSE _b._high END"
_ZERO = "_b._low = 0 OR _b._high = 0"
_FLAG = (
    f"NOT ({_ZERO}) AND array_size(filter(_o, _e -> abs(_e._v - _b._median) > CAST(:tolerance AS DOUBLE) * ({_MAD}))) "
    "* 100.0D / array_size(_o) >= CAST(:percent AS DOUBLE)"
)
_ROW = (
    "named_struct('ts', _e._t, 'value', _e._v, "
    f"'upper', CASE WHEN {_ZERO} THEN _e._v ELSE _b._median + CAST(:tolerance AS DOUBLE) * ({_MAD}) END, "
    f"'lower', CASE WHEN {_ZERO} THEN _e._v ELSE _b._median - CAST(:tolerance AS DOUBLE) * ({_MAD}) END, "
    "'isOutlier', _f)"
)


def _outlier_mad(call: FunctionCall) -> str:
    names = ("values", "times", "start", "window", "observed", "tolerance", "percent")
    bounds = _let(
        "_median",
        _median("_v"),
        f"named_struct('_median', _median, '_low', {_deviation('filter(_v, _e -> _e <= _median)')}, "
        f"'_high', {_deviation('filter(_v, _e -> _e >= _median)')})",
    )
    flagged = _let("_f", _FLAG, f"transform(_o, _e -> {_ROW})")
    observed = _let("_o", _SEEN, f"CASE WHEN array_size(_o) > 0 THEN {flagged} END")
    known = _let("_b", _let("_v", "array_sort(transform(_p, _e -> _e._v))", bounds), observed)
    kinds = ("ARRAY<DOUBLE>", "ARRAY<TIMESTAMP>", "TIMESTAMP", "INT", "INT", "DOUBLE", "DOUBLE")
    args = {name: one.typed(kind) for name, kind, one in zip(names, kinds, call.args, strict=True)}
    return f"inline({fill(_let('_p', _POINTS, known), **args)})"


FUNCTIONS = (
    Function(
        "HistogramBucket",
        ("value DOUBLE, buckets STRING -> bucket STRING",),
        "The buckets of a cumulative histogram that a value belongs to: +Inf first, then each bound that is not below "
        "it, as written. No rows for NULL.",
        "HistogramBucket(10.0, '1,2,5,10,20')",
        "+Inf; 10; 20",
        _histogram_bucket,
        kind="table",
    ),
    Function(
        "OutlierMad",
        (
            "values ARRAY<DOUBLE>, times ARRAY<TIMESTAMP>, start TIMESTAMP, minutes INT, observed INT, tolerance INT, "
            "percent INT -> ts TIMESTAMP, value DOUBLE, upper DOUBLE, lower DOUBLE, isOutlier BOOLEAN",
        ),
        "The points of the last `observed` minutes of a window with bounds: the median of all points, plus and minus "
        "`tolerance` times the median distance (MAD) of the points at or below it, or at or above it, from their own "
        "median. isOutlier is the same in all rows: whether at least `percent` % of these points are out of bounds. "
        "Where a MAD is 0 the bounds are the value and nothing is an outlier. Points without time or value do not "
        "count.",
        "OutlierMad(values, times, window.start, 15, 3, 3, 5)",
        "1970-01-01 00:12:00, 10.0, 11.0, -1.0, true; …",
        _outlier_mad,
        kind="table",
    ),
)
