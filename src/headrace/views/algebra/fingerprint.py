"""The text of a view that generations are compared by.

A generation keeps a digest of this text in its manifest. So the names in it are part of the state format: they stay
when classes or fields get other names.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.views.algebra.operators import (
    Aggregate,
    AggregateCall,
    Equal,
    Join,
    Match,
    Operator,
    Projection,
    Ranked,
    Scan,
    Selection,
    UnionAll,
    ViewPlan,
)


def view_text(view: ViewPlan) -> str:
    """The operators of a view and their parameters, in a form that never changes for the same view."""
    return _call("View", root=operator_text(view.root), columns=repr(view.columns), key=repr(view.key))


def operator_text(operator: Operator) -> str:
    """The same for one operator and those below it."""
    match operator:
        case Scan(table, fields):
            return _call("Scan", table=repr(table), fields=repr(fields))
        case Projection(below, expressions):
            return _call("Project", input=operator_text(below), expressions=repr(expressions))
        case Selection(below, condition):
            return _call("Filter", input=operator_text(below), condition=repr(condition))
        case UnionAll(inputs):
            return _call("UnionAll", inputs=_tuple(map(operator_text, inputs)))
        case Join(inputs, equal, condition):
            texts = _tuple(map(operator_text, inputs))
            return _call("Join", inputs=texts, equal=_tuple(map(_equal, equal)), condition=repr(condition))
        case Match(kind, left, right, equal, condition):
            sides = {"left": operator_text(left), "right": operator_text(right)}
            return _call("Match", kind=repr(kind), **sides, equal=_tuple(map(_equal, equal)), condition=repr(condition))
        case Aggregate(below, keys, calls):
            return _call("Aggregate", input=operator_text(below), keys=repr(keys), calls=_tuple(map(_aggregate, calls)))
        case Ranked(below, partition, expressions):
            rows = operator_text(below)
            return _call("Ranked", input=rows, partition=repr(partition), expressions=repr(expressions))


def _equal(pair: Equal) -> str:
    return _call("Equal", left=repr(pair.left), right=repr(pair.right), nulls=repr(pair.nulls))


def _aggregate(call: AggregateCall) -> str:
    return _call(
        "Call",
        name=repr(call.name),
        sql=repr(call.sql),
        function=repr(call.function),
        argument=repr(call.argument),
        distinct=repr(call.distinct),
        condition=repr(call.condition),
    )


def _call(type_name: str, /, **values: str) -> str:
    return f"{type_name}({', '.join(f'{key}={text}' for key, text in values.items())})"


def _tuple(texts: Iterable[str]) -> str:
    parts = list(texts)
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
