"""Aggregates that are kept as sums: which they are, what a row adds to them, and what they give in the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from headrace.core.tables import WEIGHT
from headrace.views.algebra.operators import Aggregate, AggregateCall
from headrace.views.maintain.batch_query import OperatorTypes

COUNT = "__n"
"""How many rows a group has. It is there as long as that is more than 0."""
_EXACT = {"sum": 28, "avg": 24}
"""Of decimals of more digits a product with a weight, or the quotient of an average, would not be exact in 38."""


@dataclass(frozen=True)
class Sum:
    """One additive column: what a row adds, and the type of the sum."""

    name: str
    added: str
    type: str


@dataclass(frozen=True)
class CallAsSums:
    """A call as sums: those it needs, and the answer as an expression over them."""

    sums: tuple[Sum, ...]
    answer: Callable[[Callable[[Sum], str]], str]
    """Given what gives the value of a sum."""


class Sums:
    """All calls of one aggregate as sums. What several calls need is there once."""

    def __init__(self, calls: tuple[CallAsSums, ...]) -> None:
        self._calls = calls
        self._first: dict[tuple[str, str], Sum] = {}
        for one in (Sum(COUNT, WEIGHT, "BIGINT"), *(one for call in calls for one in call.sums)):
            self._first.setdefault((one.added, one.type), one)
        self.columns: tuple[Sum, ...] = tuple(self._first.values())

    def answers(self, value: Callable[[Sum], str]) -> list[str]:
        """The results of all calls, by what gives the value of a sum."""
        return [call.answer(lambda one: value(self._first[one.added, one.type])) for call in self._calls]


def as_sums(aggregate: Aggregate, types: OperatorTypes) -> Sums | None:
    """The aggregate as sums, or None when some call is none: then touched groups are computed again."""
    kept = []
    for number, call in enumerate(aggregate.calls):
        one = _call_as_sums(number, call, aggregate, types)
        if one is None:
            return None
        kept.append(one)
    return Sums(tuple(kept))


def _call_as_sums(number: int, call: AggregateCall, aggregate: Aggregate, types: OperatorTypes) -> CallAsSums | None:
    if call.distinct or call.function not in ("count", "sum", "avg"):
        return None
    count = Sum(f"__c{number}", _where(call, WEIGHT), "BIGINT")
    if call.function == "count":
        # of several arguments it counts the rows in which none is null: not worth a rule
        plain = call.argument is not None or call.sql.replace(" ", "").lower().startswith(("count(*)", "count(1)"))
        return CallAsSums((count,), lambda value: value(count)) if plain else None
    if call.argument is None:
        return None
    kind = types.of_expression(aggregate.input, call.argument)
    digits = _digits(kind)
    if digits is None or digits[0] > _EXACT[call.function]:
        return None
    value = f"CAST({call.argument} AS DECIMAL({digits[0]},{digits[1]})) * CAST({WEIGHT} AS DECIMAL(9,0))"
    total = Sum(f"__s{number}", _where(call, f"({value})"), f"DECIMAL(38,{digits[1]})")
    result = types.of(aggregate)[call.name]

    def answer(value: Callable[[Sum], str]) -> str:
        whole = value(total) if call.function == "sum" else _average(value(total), value(count), kind)
        return f"CASE WHEN {value(count)} > 0 THEN CAST({whole} AS {result}) END"

    return CallAsSums((count, total), answer)


def _where(call: AggregateCall, added: str) -> str:
    """What a row adds if it counts, else 0."""
    # the condition first: what it leaves out may not be computed, as it may fail (10 DIV n FILTER (WHERE n <> 0))
    asked = [f"({call.condition})"] if call.condition else []
    asked += [f"({call.argument}) IS NOT NULL"] if call.argument is not None else []
    return f"CASE WHEN {' AND '.join(asked)} THEN {added} ELSE 0 END" if asked else added


def _digits(kind: pa.DataType) -> tuple[int, int] | None:
    """How many digits a value has, and how many of them after the point; None when it is no exact number."""
    if pa.types.is_integer(kind):
        return 19, 0
    return (kind.precision, kind.scale) if pa.types.is_decimal(kind) else None


def _average(total: str, count: str, kind: pa.DataType) -> str:
    """As Spark divides: doubles for integers; for decimals rounded once, to four digits more than they have.

    The type of a division has the digits that are wanted when its left side has 34 of them and a scale of 2 or more,
    so a scale below is shifted there and back.
    """
    if not pa.types.is_decimal(kind):
        return f"CAST({total} AS DOUBLE) / {count}"
    shift = max(0, 2 - kind.scale)
    left = f"CAST({total} AS DECIMAL({34 - shift},{kind.scale}))"
    if shift:
        left = f"CAST({left} * 0.{'0' * (shift - 1)}1BD AS DECIMAL(34,2))"
    divided = f"{left} / CAST({count} AS DECIMAL(20,0))"
    return f"({divided}) * {10**shift}" if shift else divided
