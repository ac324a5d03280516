"""Arrays and maps: elements, membership, chains of operations."""

from __future__ import annotations

import re

from headrace.core.errors import did_you_mean
from headrace.functions.function import Function, FunctionCall
from headrace.functions.template import fill

_TYPES = {"integer": "INT", "int": "INT", "long": "BIGINT", "bigint": "BIGINT", "float": "DOUBLE", "double": "DOUBLE"}
_OTHER = "other"
_OPERATION = re.compile(r"\s*(\w+)\s*(?:\(\s*(\d*)\s*\))?\s*")
_TO_ARRAY = {
    "distinct": "array_distinct(:a)",
    "sorted": "array_sort(:a)",
    "reversed": "reverse(:a)",
    "reverse": "reverse(:a)",
    "limit": "slice(:a, 1, :n)",
    "skip": "slice(:a, 1 + :n, array_size(:a))",
}
_AVERAGE = (
    "aggregate(:a, named_struct('_sum', CAST(0 AS DOUBLE), '_n', 0), (_s, _e) -> named_struct("
    "'_sum', _s._sum + coalesce(CAST(_e AS DOUBLE), 0), '_n', _s._n + CASE WHEN _e IS NULL THEN 0 ELSE 1 END), "
    "_s -> _s._sum / nullif(_s._n, 0))"
)
_TO_VALUE = {
    "count": "array_size(filter(:a, _e -> _e IS NOT NULL))",
    "sum": "aggregate(:a, CAST(0 AS :wide), (_s, _e) -> _s + coalesce(CAST(_e AS :wide), 0))",
    "average": _AVERAGE,
    "avg": _AVERAGE,
    "min": "array_min(:a)",
    "max": "array_max(:a)",
    "first": "try_element_at(:a, 1)",
    "findFirst": "try_element_at(:a, 1)",
    "findAny": "try_element_at(:a, 1)",
    "last": "try_element_at(:a, -1)",
}
_WITH_NUMBER = ("limit", "skip")
_NUMERIC = ("sum", "average", "avg")
# Dagger returns 0 for an empty array of numbers
_NONE_IS_ZERO = ("average", "avg", "min", "max", "first", "findFirst", "findAny", "last")
_ALL = {name.lower(): name for name in (*_TO_ARRAY, *_TO_VALUE)}


def _chain(call: FunctionCall) -> tuple[str, bool]:
    """The expression of a chain of operations on an array, and whether it is a single value."""
    kind = _element_type(call)
    result = fill(f"CAST(:a AS ARRAY<{kind}>)", a=call.args[0]) if kind else call.args[0].typed("ARRAY<STRING>").sql
    single = False
    for part in call.written(1, "the operations").split("."):
        name, number = _operation(call, part)
        if single:
            raise call.error(f"'{name}' cannot follow an operation that gives one value")
        if name in _NUMERIC and kind is None:
            raise call.error(f"'{name}' needs numbers: the type must be Integer, Long, Float or Double")
        template = (_TO_ARRAY.get(name) or _TO_VALUE[name]).replace(":wide", "BIGINT" if kind != "DOUBLE" else kind)
        if kind is not None and name in _NONE_IS_ZERO:
            template = f"CASE WHEN array_size(:a) = 0 THEN 0 ELSE {template} END"
        result = fill(template, a=result, n=number) if name in _WITH_NUMBER else fill(template, a=result)
        single = name in _TO_VALUE
    return result, single


def _element_type(call: FunctionCall) -> str | None:
    """The Spark type of the elements; None if it stays the same."""
    word = call.written(2, "the type").strip()
    if word.lower() not in (*_TYPES, _OTHER):
        raise call.error(f"unknown type '{word}'", "numbers are Integer, Long, Float or Double; all else is Other")
    return _TYPES.get(word.lower())


def _operation(call: FunctionCall, part: str) -> tuple[str, int]:
    found = _OPERATION.fullmatch(part)
    word = found[1] if found else part.strip()
    name = _ALL.get(word.lower())
    if found is None or name is None:
        raise call.error(f"unknown operation {word}", did_you_mean(word, _ALL.values(), "operations"))
    if (name in _WITH_NUMBER) != bool(found[2]):
        raise call.error(f"write {name}(3)" if name in _WITH_NUMBER else f"'{name}' takes no number")
    return name, int(found[2] or 0)


def _array_aggregate(call: FunctionCall) -> str:
    result, single = _chain(call)
    if not single:
        raise call.error("the last operation must give one value", "for an array as result use ArrayOperate")
    return result


def _array_operate(call: FunctionCall) -> str:
    result, single = _chain(call)
    if single:
        raise call.error("every operation must give an array", "for a single value as result use ArrayAggregate")
    return result


def _element_at(call: FunctionCall) -> str:
    """`(array, index)`, `(array, index, path)` or, as in Dagger, `(array, name, index, path[, table])`."""
    place = 1 if len(call.args) < 4 else 2
    if len(call.args) >= 4:
        call.written(1, "the name of the array")
    element = fill(
        "try_element_at(:a, CAST(:i + CASE WHEN :i >= 0 THEN 1 ELSE 0 END AS INT))",
        a=call.args[0].typed("ARRAY<STRING>"),
        i=call.args[place].typed("INT"),
    )
    if len(call.args) == 2:
        return element
    path = call.written(place + 1, "the path")
    names = [name.strip() for name in path.split(".")]
    if not all(re.fullmatch(r"\w+", name) for name in names):
        raise call.error(f"'{path}' is not a path of names such as driver.location.latitude")
    return ".".join([element, *(f"`{name}`" for name in names)])


def _list_contains(call: FunctionCall) -> str:
    # Spark does not accept an untyped NULL
    if any(one.is_null for one in call.args):
        return "false"
    return fill("coalesce(array_contains(:a, :v), false)", a=call.args[0], v=call.args[1])


def _map_get(call: FunctionCall) -> str:
    if call.args[0].is_null:
        return "CAST(NULL AS STRING)"
    return fill("try_element_at(:m, :k)", m=call.args[0], k=call.args[1])


_OPERATIONS = (
    "Operations are joined by dots: distinct, sorted, reversed, limit(n) and skip(n) return an array; count, sum, "
    "average, min, max, first and last return one value. The type of the elements is Integer, Long, Float, Double, or "
    "Other, which leaves them unchanged. NULL elements do not count. For an empty array sum and count are 0; average, "
    "min, max, first and last are 0 too, as in Dagger, but NULL with the type Other. A NULL array gives NULL. "
    "Operations and type must be literals."
)

FUNCTIONS = (
    Function(
        "ArrayAggregate",
        ("array ARRAY<T>, operations STRING, type STRING -> value",),
        f"Reduces an array to one value. {_OPERATIONS}",
        "ArrayAggregate(array(1, 2, 3), 'average', 'Integer')",
        "2.0",
        _array_aggregate,
    ),
    Function(
        "ArrayOperate",
        ("array ARRAY<T>, operations STRING, type STRING -> ARRAY<T>",),
        f"Transforms an array. {_OPERATIONS}",
        "ArrayOperate(array(1.3, 2.1, 1.3), 'distinct.sorted', 'double')",
        "[1.3, 2.1]",
        _array_operate,
    ),
    Function(
        "ElementAt",
        (
            "array ARRAY<T>, index INT -> T",
            "rows ARRAY<STRUCT>, index INT, path STRING -> field",
            "rows ARRAY<STRUCT>, name STRING, index INT, path STRING -> field",
            "rows ARRAY<STRUCT>, name STRING, index INT, path STRING, table STRING -> field",
        ),
        "The element at an index, counted from 0, or from the end with -1 for the last; NULL where there is none. With "
        "a path, a field of that element. `name` and `table` are accepted as in Dagger and ignored.",
        "ElementAt(array('a', 'b', 'c'), -1)",
        "c",
        _element_at,
    ),
    Function(
        "ListContains",
        ("list ARRAY<T>, item T -> BOOLEAN",),
        "Whether an array has an element; false for a NULL array or item. NULL elements do not match.",
        "ListContains(array('a', 'b'), 'a')",
        "true",
        _list_contains,
    ),
    Function(
        "MapGet",
        ("map MAP<K, V>, key K -> V",),
        "The value of a key; NULL when there is no such key or no map.",
        "MapGet(map('a', 1, 'b', 2), 'b')",
        "2",
        _map_get,
    ),
)
