"""Columns that have to be equal get one type.

`'01' = 1` is true, and so is `'1' = 1`: rows that match the same row need not have the same value. What is touched is
looked for by value, so columns of unlike types are compared as what Spark would make of both.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.views.algebra.names import pass_through, quoted
from headrace.views.algebra.operators import (
    Aggregate,
    Equal,
    Join,
    Match,
    Operator,
    Projection,
    Ranked,
    Scan,
    Selection,
    UnionAll,
    inputs_of,
)
from headrace.views.algebra.types import comparable
from headrace.views.maintain.batch_query import OperatorTypes


def align_join_types(op: Operator, types: OperatorTypes) -> Operator:
    """The same rows, from joins whose columns are alike."""
    inputs = [align_join_types(one, types) for one in inputs_of(op)]
    match op:
        case Scan():
            return op
        case UnionAll():
            return replace(op, inputs=tuple(inputs))
        case Projection() | Selection() | Aggregate() | Ranked():
            return replace(op, input=inputs[0])
        case Match():
            return _align(replace(op, left=inputs[0], right=inputs[1]), types)
        case Join():
            return _align(replace(op, inputs=tuple(inputs)), types)


def _align(op: Join | Match, types: OperatorTypes) -> Operator:
    sides = list(inputs_of(op))
    equal = [_pair(sides, one, types) for one in op.equal]
    if tuple(equal) == op.equal:
        return op
    made: Operator
    if isinstance(op, Join):
        made = replace(op, inputs=tuple(sides), equal=tuple(equal))
    else:
        made = replace(op, left=sides[0], right=sides[1], equal=tuple(equal))
    return Projection(made, pass_through(op.columns))


def _pair(sides: list[Operator], one: Equal, types: OperatorTypes) -> Equal:
    places = [next(n for n, side in enumerate(sides) if name in side.columns) for name in (one.left, one.right)]
    kinds = [types.schema(sides[n]).field(name).type for n, name in zip(places, (one.left, one.right), strict=True)]
    if comparable(*kinds):
        return one
    kind = types.compared(sides[places[0]], one.left, sides[places[1]], one.right)
    names = (f"{one.left}_for_{one.right}", f"{one.right}_for_{one.left}")
    for place, column, name in zip(places, (one.left, one.right), names, strict=True):
        cast = (name, f"CAST({quoted(column)} AS {kind})")
        sides[place] = Projection(sides[place], (*pass_through(sides[place].columns), cast))
    return replace(one, left=names[0], right=names[1])
