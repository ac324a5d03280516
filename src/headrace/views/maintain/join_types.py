"""Gives the two columns of a join condition one type.

`'01' = 1` is true, and so is `'1' = 1`: rows that match the same row need not have the same value. Touched rows are
found by value, so columns of different types are cast to the type in which Spark compares them.
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
    """The same relation; the equal columns of its joins have comparable types."""
    inputs = [align_join_types(input_, types) for input_ in inputs_of(op)]
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
    equal = [_pair(sides, pair, types) for pair in op.equal]
    if tuple(equal) == op.equal:
        return op
    join: Operator
    if isinstance(op, Join):
        join = replace(op, inputs=tuple(sides), equal=tuple(equal))
    else:
        join = replace(op, left=sides[0], right=sides[1], equal=tuple(equal))
    return Projection(join, pass_through(op.columns))


def _pair(sides: list[Operator], pair: Equal, types: OperatorTypes) -> Equal:
    places = [next(n for n, side in enumerate(sides) if name in side.columns) for name in (pair.left, pair.right)]
    kinds = [types.schema(sides[n]).field(name).type for n, name in zip(places, (pair.left, pair.right), strict=True)]
    if comparable(*kinds):
        return pair
    kind = types.compared(sides[places[0]], pair.left, sides[places[1]], pair.right)
    names = (f"{pair.left}_for_{pair.right}", f"{pair.right}_for_{pair.left}")
    for place, column, name in zip(places, (pair.left, pair.right), names, strict=True):
        cast = (name, f"CAST({quoted(column)} AS {kind})")
        sides[place] = Projection(sides[place], (*pass_through(sides[place].columns), cast))
    return replace(pair, left=names[0], right=names[1])
