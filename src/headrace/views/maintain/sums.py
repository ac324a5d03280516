"""Aggregates maintained as sums: the sums they need, the term that a row adds, and the result of the sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from headrace.core.tables import WEIGHT
from headrace.views.algebra.operators import Aggregate, AggregateCall
from headrace.views.maintain.batch_query import OperatorTypes

COUNT = "__n"
"""The number of rows of a group. The group exists while it is above 0."""
_MAX_DIGITS = {"sum": 28, "avg": 24}
"""With more digits, a product with a weight or the quotient of an average would not be exact in 38 digits."""


@dataclass(frozen=True)
class Sum:
    """One additive column: the term that a row adds, and the type of the sum."""

    name: str
    term: str
    type: str


@dataclass(frozen=True)
class CallAsSums:
    """An aggregate call: the sums it needs, and its result as an expression over them."""

    sums: tuple[Sum, ...]
    result: Callable[[Callable[[Sum], str]], str]
    """Takes a function from a sum to the SQL of its value."""


class Sums:
    """All calls of one aggregate as sums. A sum that several calls need is stored once."""

    def __init__(self, calls: tuple[CallAsSums, ...]) -> None:
        self._calls = calls
        self._first: dict[tuple[str, str], Sum] = {}
        for sum_ in (Sum(COUNT, WEIGHT, "BIGINT"), *(sum_ for call in calls for sum_ in call.sums)):
            self._first.setdefault((sum_.term, sum_.type), sum_)
        self.columns: tuple[Sum, ...] = tuple(self._first.values())

    def results(self, value: Callable[[Sum], str]) -> list[str]:
        """The results of all calls; `value` gives the SQL of a sum's value."""
        return [call.result(lambda sum_: value(self._first[sum_.term, sum_.type])) for call in self._calls]


def as_sums(aggregate: Aggregate, types: OperatorTypes) -> Sums | None:
    """The aggregate as sums; None if a call is not linear: then touched groups are recomputed."""
    calls = []
    for number, call in enumerate(aggregate.calls):
        call_sums = _call_as_sums(number, call, aggregate, types)
        if call_sums is None:
            return None
        calls.append(call_sums)
    return Sums(tuple(calls))


def _call_as_sums(number: int, call: AggregateCall, aggregate: Aggregate, types: OperatorTypes) -> CallAsSums | None:
    if call.distinct or call.function not in ("count", "sum", "avg"):
        return None
    count = Sum(f"__c{number}", _where(call, WEIGHT), "BIGINT")
    if call.function == "count":
        # count(a, b) counts rows in which none is null: rare, so it is recomputed
        is_linear = call.argument is not None or call.sql.replace(" ", "").lower().startswith(("count(*)", "count(1)"))
        return CallAsSums((count,), lambda value: value(count)) if is_linear else None
    if call.argument is None:
        return None
    argument_type = types.of_expression(aggregate.input, call.argument)
    digits = _digits(argument_type)
    if digits is None or digits[0] > _MAX_DIGITS[call.function]:
        return None
    value = f"CAST({call.argument} AS DECIMAL({digits[0]},{digits[1]})) * CAST({WEIGHT} AS DECIMAL(9,0))"
    total = Sum(f"__s{number}", _where(call, f"({value})"), f"DECIMAL(38,{digits[1]})")
    result_type = types.of(aggregate)[call.name]

    def result(value: Callable[[Sum], str]) -> str:
        whole = value(total) if call.function == "sum" else _average(value(total), value(count), argument_type)
        return f"CASE WHEN {value(count)} > 0 THEN CAST({whole} AS {result_type}) END"

    return CallAsSums((count, total), result)


def _where(call: AggregateCall, term: str) -> str:
    """The term of a row that counts, else 0."""
    # the condition comes first: the argument of an excluded row may fail (10 DIV n FILTER (WHERE n <> 0))
    conditions = [f"({call.condition})"] if call.condition else []
    conditions += [f"({call.argument}) IS NOT NULL"] if call.argument is not None else []
    return f"CASE WHEN {' AND '.join(conditions)} THEN {term} ELSE 0 END" if conditions else term


def _digits(kind: pa.DataType) -> tuple[int, int] | None:
    """Precision and scale; None if the type is not an exact number."""
    if pa.types.is_integer(kind):
        return 19, 0
    return (kind.precision, kind.scale) if pa.types.is_decimal(kind) else None


def _average(total: str, count: str, kind: pa.DataType) -> str:
    """Divides as Spark does: doubles for integers; decimals are rounded once, to four more digits.

    The type of a division has the right digits if its left side has 34 of them and a scale of 2 or more, so a smaller
    scale is shifted up and back.
    """
    if not pa.types.is_decimal(kind):
        return f"CAST({total} AS DOUBLE) / {count}"
    shift = max(0, 2 - kind.scale)
    left = f"CAST({total} AS DECIMAL({34 - shift},{kind.scale}))"
    if shift:
        left = f"CAST({left} * 0.{'0' * (shift - 1)}1BD AS DECIMAL(34,2))"
    divided = f"{left} / CAST({count} AS DECIMAL(20,0))"
    return f"({divided}) * {10**shift}" if shift else divided
