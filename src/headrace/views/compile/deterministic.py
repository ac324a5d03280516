"""Aggregates that give the same for the same rows, in whatever order these come."""

from __future__ import annotations

from sqlglot import exp

from headrace.views.compile.parsing import function_of
from headrace.views.compile.scope import Env

_SORTED = ("collect_list", "collect_set", "array_agg")
_PICKING = ("first", "first_value", "last", "last_value")
_SKETCHES = ("histogram_numeric", "approx_top_k", "kll_")


def deterministic(node: exp.Expr, env: Env) -> exp.Expr:
    """The call of an aggregate, perhaps with FILTER and WITHIN GROUP around it, so that the order does not matter.

    Where Spark may choose, the least value is taken; collected values are sorted.
    """
    made = node.copy()
    call = made.find(exp.Anonymous)
    assert call is not None, "an aggregate is a call"
    name = function_of(call)
    if name in _PICKING:
        hint = "say which: min(x), max(x), max_by(x, time) or min_by(x, time)"
        raise env.refuse(node, f"{name}() of a group: its rows have no order", hint)
    if name.startswith(_SKETCHES):
        raise env.refuse(node, f"{name}(): its result depends on the order of rows", "count the values, or percentile")
    if name == "any_value":
        return _any_value(made, call)
    if name in _SORTED:
        return exp.Anonymous(this="sort_array", expressions=[made])
    return _deterministic_call(made, call, name)


def _any_value(made: exp.Expr, call: exp.Anonymous) -> exp.Expr:
    """min() is one of the values, and always the same one."""
    call.set("this", "min")
    call.set("expressions", call.expressions[:1])
    nulls = (exp.IgnoreNulls, exp.RespectNulls)
    found: exp.Expr = made.transform(lambda part: part.this if isinstance(part, nulls) else part)
    return found


def _deterministic_call(made: exp.Expr, call: exp.Anonymous, name: str) -> exp.Expr:
    arguments = call.expressions
    within = made.find(exp.WithinGroup) is not None
    if name == "mean":
        call.set("this", "avg")
    elif name == "count" and len(arguments) > 1:
        # rows that have them all
        tests = [exp.Not(this=exp.Is(this=one.copy(), expression=exp.Null())) for one in arguments]
        call.set("expressions", [exp.Case(ifs=[exp.If(this=exp.and_(*tests), true=exp.Literal.number(1))])])
    elif name == "mode" and len(arguments) == 1 and not within:
        call.append("expressions", exp.true())
    elif name in ("max_by", "min_by") and len(arguments) >= 2:
        value, order = arguments[0], arguments[1]
        both = exp.Anonymous(this="struct", expressions=[order.copy(), value.copy()])
        order.replace(exp.Anonymous(this="if", expressions=[_is_null(order), exp.Null(), both]))
    elif name in ("listagg", "string_agg") and not within:
        return _sorted_listagg(made, call)
    return made


def _sorted_listagg(made: exp.Expr, call: exp.Anonymous) -> exp.Expr:
    """Texts in their own order. Not WITHIN GROUP: Spark 4.2 fails on it beside an aggregate with DISTINCT."""
    values, *rest = call.expressions
    collected = exp.Anonymous(this="collect_list", expressions=[values.copy()])
    if made is call:
        made = collected
    else:
        call.replace(collected)
    none = exp.EQ(this=exp.Anonymous(this="size", expressions=[made.copy()]), expression=exp.Literal.number(0))
    ordered = exp.Anonymous(this="sort_array", expressions=[made])
    separator = rest[0].copy() if rest else exp.Literal(this="''", is_string=True)
    joined = exp.Anonymous(this="array_join", expressions=[ordered, separator])
    return exp.Anonymous(this="if", expressions=[none, exp.Null(), joined])


def _is_null(node: exp.Expr) -> exp.Expr:
    return exp.Is(this=node.copy(), expression=exp.Null())
