"""Rewrites aggregates so that their result does not depend on the order of rows."""

from __future__ import annotations

from sqlglot import exp

from headrace.views.compile.parsing import function_of
from headrace.views.compile.scope import Env

_SORTED = ("collect_list", "collect_set", "array_agg")
_PICKING = ("first", "first_value", "last", "last_value")
_SKETCHES = ("histogram_numeric", "approx_top_k", "kll_")


def deterministic(node: exp.Expr, env: Env) -> exp.Expr:
    """An aggregate call, possibly with FILTER and WITHIN GROUP, that is independent of the row order.

    Where Spark may choose a value, the least one is taken; collected values are sorted.
    """
    copy = node.copy()
    call = copy.find(exp.Anonymous)
    assert call is not None, "an aggregate is a call"
    name = function_of(call)
    if name in _PICKING:
        hint = "use min(x), max(x), max_by(x, time) or min_by(x, time)"
        raise env.refuse(node, f"{name}() of a group: its rows have no order", hint)
    if name.startswith(_SKETCHES):
        raise env.refuse(
            node, f"{name}(): its result depends on the order of rows", "count the values, or use percentile"
        )
    if name == "any_value":
        return _any_value(copy, call)
    if name in _SORTED:
        return exp.Anonymous(this="sort_array", expressions=[copy])
    return _deterministic_call(copy, call, name)


def _any_value(expression: exp.Expr, call: exp.Anonymous) -> exp.Expr:
    """min() is always the same one of the values."""
    call.set("this", "min")
    call.set("expressions", call.expressions[:1])
    nulls = (exp.IgnoreNulls, exp.RespectNulls)
    result: exp.Expr = expression.transform(lambda part: part.this if isinstance(part, nulls) else part)
    return result


def _deterministic_call(expression: exp.Expr, call: exp.Anonymous, name: str) -> exp.Expr:
    arguments = call.expressions
    within = expression.find(exp.WithinGroup) is not None
    if name == "mean":
        call.set("this", "avg")
    elif name == "count" and len(arguments) > 1:
        # rows in which no argument is null
        tests = [exp.Not(this=exp.Is(this=argument.copy(), expression=exp.Null())) for argument in arguments]
        call.set("expressions", [exp.Case(ifs=[exp.If(this=exp.and_(*tests), true=exp.Literal.number(1))])])
    elif name == "mode" and len(arguments) == 1 and not within:
        call.append("expressions", exp.true())
    elif name in ("max_by", "min_by") and len(arguments) >= 2:
        value, order = arguments[0], arguments[1]
        both = exp.Anonymous(this="struct", expressions=[order.copy(), value.copy()])
        order.replace(exp.Anonymous(this="if", expressions=[_is_null(order), exp.Null(), both]))
    elif name in ("listagg", "string_agg") and not within:
        return _sorted_listagg(expression, call)
    return expression


def _sorted_listagg(expression: exp.Expr, call: exp.Anonymous) -> exp.Expr:
    """Strings in sorted order. Not WITHIN GROUP: Spark 4.2 fails on it next to an aggregate with DISTINCT."""
    values, *rest = call.expressions
    collected = exp.Anonymous(this="collect_list", expressions=[values.copy()])
    if expression is call:
        expression = collected
    else:
        call.replace(collected)
    is_empty = exp.EQ(
        this=exp.Anonymous(this="size", expressions=[expression.copy()]), expression=exp.Literal.number(0)
    )
    ordered = exp.Anonymous(this="sort_array", expressions=[expression])
    separator = rest[0].copy() if rest else exp.Literal(this="''", is_string=True)
    joined = exp.Anonymous(this="array_join", expressions=[ordered, separator])
    return exp.Anonymous(this="if", expressions=[is_empty, exp.Null(), joined])


def _is_null(node: exp.Expr) -> exp.Expr:
    return exp.Is(this=node.copy(), expression=exp.Null())
