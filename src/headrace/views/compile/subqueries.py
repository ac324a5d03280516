"""FROM and WHERE of a SELECT, with the subqueries in conditions and expressions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from headrace.views.algebra.names import pass_through, quoted
from headrace.views.algebra.operators import Aggregate, AggregateCall, Operator, Projection
from headrace.views.compile.grouping import Grouping
from headrace.views.compile.joins import conditions_of, inner_join, match_join, no_equality
from headrace.views.compile.parsing import function_of, ref
from headrace.views.compile.pushdown import add_filter, with_columns
from headrace.views.compile.scope import ColumnScope, Env, VisibleColumn, refs
from headrace.views.compile.sources import sources
from headrace.views.compile.translation import Attached, Translation, is_aggregate

# of no rows at all these are not null
_COUNTS = ("count", "count_if", "regr_count", "approx_count_distinct")
_ARRAYS = ("collect_list", "collect_set", "array_agg")


@dataclass
class SelectSource:
    """What a SELECT makes its columns of."""

    op: Operator
    columns: tuple[VisibleColumn, ...]
    correlated: list[exp.Expr]
    """Conditions that are also about a row of the query around it."""


def select_source(t: Translation, select: exp.Select, env: Env, outer: ColumnScope | None = None) -> SelectSource:
    """FROM and WHERE."""
    found = sources(t, select, env, outer)
    scope = ColumnScope(found.columns, outer)
    where = select.args.get("where")
    tests, correlated = [], []
    for condition in conditions_of(where.this if where else None):
        if _subquery_test(condition) is not None:
            tests.append(condition)
            continue
        one = t.resolved(condition, scope, env, filtering=True)
        if any(is_aggregate(node) for node in one.walk()):
            raise env.refuse(condition, "an aggregate in WHERE: there are no groups yet", "use HAVING")
        if any(function_of(node) == "window" or isinstance(node, exp.Window) for node in one.walk()):
            raise env.refuse(condition, "a window in WHERE", "make it in a subquery, or QUALIFY")
        if _is_outer(one, scope):
            correlated.append(one)
        else:
            found.conditions.append(one)
    values = [one for one in found.conditions if refs(one) & set(t.attached)]
    found.conditions = [one for one in found.conditions if one not in values]
    op = found.joined(t)
    op = add_filter(t.beside(op, values), values)
    for condition in tests:
        op = _apply_test(t, op, condition, scope, env)
    return SelectSource(op, found.columns, correlated)


def _is_outer(node: exp.Expr, scope: ColumnScope) -> bool:
    """Whether it uses a column of a query around this one."""
    around, seen = scope.outer, refs(node)
    while around is not None:
        if seen & {one.ref for one in around.columns}:
            return True
        around = around.outer
    return False


def _subquery_test(condition: exp.Expr) -> tuple[bool, exp.Expr] | None:
    """A condition that is nothing but [NOT] EXISTS or [NOT] IN (SELECT …), and whether it is without NOT."""
    inside = condition.this.unnest() if isinstance(condition, exp.Not) else condition
    is_test = isinstance(inside, exp.Exists) or (isinstance(inside, exp.In) and inside.args.get("query"))
    return (inside is condition, inside) if is_test else None


def _apply_test(t: Translation, op: Operator, condition: exp.Expr, scope: ColumnScope, env: Env) -> Operator:
    """The rows for which a subquery has, or has not, a row."""
    found = _subquery_test(condition)
    assert found is not None, "asked before"
    positive, test = found
    kind: Literal["semi", "anti"] = "semi" if positive else "anti"
    inside, conditions, nullable = _matching(t, test, scope, env)
    op = t.beside(op, conditions)
    if not conditions:
        return _whether_any(t, op, inside.op, positive)
    made = match_join(kind, op, inside.op, conditions, t.names)
    if made is None:
        raise no_equality(env, test, "EXISTS")
    if positive or not nullable:
        return made
    if len(nullable) > 1 or len(conditions) > 1:
        hint = "write NOT EXISTS (SELECT 1 FROM … WHERE a = b): it asks only for rows that are equal"
        raise env.refuse(test, "NOT IN of several columns, or of a query about the row outside", hint)
    return _without_nulls(t, made, inside.op, *nullable[0])


def _matching(
    t: Translation, test: exp.Expr, scope: ColumnScope, env: Env
) -> tuple[SelectSource, list[exp.Expr], list[tuple[exp.Expr, str]]]:
    """The rows of the subquery, when they match a row outside, and the pairs of IN."""
    query = test.args["query"].this if isinstance(test, exp.In) else test.this
    query = query.this if isinstance(query, exp.Subquery) else query
    env = env.with_commons(query)
    outside = _values(t, test.this, scope, env) if isinstance(test, exp.In) else []
    if not _is_simple(query):
        whole = t.relation(query, env, scope)
        inside = SelectSource(whole.op, whole.columns, [])
        columns = [one.ref for one in whole.columns]
    else:
        inside = select_source(t, query, env, scope)
        items = (
            [t.resolved(one.unalias(), ColumnScope(inside.columns), env) for one in _items(query)] if outside else []
        )
        inside.op, columns = with_columns(t.beside(inside.op, items), items, t.names)
    if outside and len(columns) != len(outside):
        message = f"IN compares {len(outside)} values with {len(columns)} columns"
        raise env.refuse(test, message, "select as many columns as there are values before IN")
    pairs = list(zip(outside, columns, strict=True)) if outside else []
    conditions = [*inside.correlated, *(exp.EQ(this=one, expression=ref(column)) for one, column in pairs)]
    _check_around(t, test, conditions, inside, scope, env)
    return inside, conditions, pairs


def _check_around(
    t: Translation, node: exp.Expr, conditions: list[exp.Expr], inside: SelectSource, scope: ColumnScope, env: Env
) -> None:
    """A subquery is matched with rows of the query right around it."""
    known = {one.ref for one in scope.columns} | set(inside.op.columns) | set(t.attached)
    if refs(*conditions) - known:
        hint = "join that table in the query between them"
        raise env.refuse(node, "a subquery about a row two queries outside", hint)


def _items(query: exp.Select) -> list[exp.Expr]:
    return list(query.expressions)


def _values(t: Translation, node: exp.Expr, scope: ColumnScope, env: Env) -> list[exp.Expr]:
    node = node.unnest()
    values = node.expressions if isinstance(node, exp.Tuple) else [node]
    return [t.resolved(one, scope, env) for one in values]


def _is_simple(query: exp.Expr) -> bool:
    """Whether a row of the subquery is a row of its FROM, so that conditions about a row outside can be matched."""
    exists = isinstance(query.parent, exp.Exists)  # then its columns do not matter, nor does LIMIT 1
    limit = query.args.get("limit")
    kept = exists and limit is not None and limit.expression.name not in ("0", "")
    clauses = ("group", "having", "offset", "qualify", *(() if kept else ("limit",)))
    if not isinstance(query, exp.Select) or any(query.args.get(one) for one in clauses):
        return False
    return not any((one.is_star and not exists) or _needs_all_rows(one) for one in query.expressions)


def _needs_all_rows(node: exp.Expr) -> bool:
    return any(is_aggregate(part) or isinstance(part, exp.Window) for part in node.walk())


def _whether_any(t: Translation, op: Operator, inside: Operator, positive: bool) -> Operator:
    """All rows, if the subquery has a row; or if it has none. It changes only when the first comes or the last goes."""
    some = Aggregate(Projection(inside, ((one := t.names.fresh("any"), "1"),)), (one,), ())
    if positive:
        return inner_join([op, some], [], t.names)
    number = t.names.fresh("number")
    none = Aggregate(some, (), (AggregateCall(number, "count(*)", "count"),))
    return inner_join([op, none], [exp.EQ(this=ref(number), expression=exp.Literal.number(0))], t.names)


def _without_nulls(t: Translation, op: Operator, inside: Operator, value: exp.Expr, column: str) -> Operator:
    """NOT IN is also not true when a null is on either side, unless the subquery has no row at all."""
    is_null, some, nulls = t.names.fresh("is_null"), t.names.fresh("some"), t.names.fresh("nulls")
    kinds = Aggregate(Projection(inside, ((is_null, f"{quoted(column)} IS NULL"),)), (is_null,), ())
    calls = (AggregateCall(some, "count(*)", "count"), AggregateCall(nulls, f"count_if({quoted(is_null)})", "count_if"))
    value_is_null = exp.Is(this=value, expression=exp.Null())
    empty = exp.EQ(this=ref(some), expression=exp.Literal.number(0))
    clean = exp.EQ(this=ref(nulls), expression=exp.Literal.number(0))
    fine = exp.Or(this=empty, expression=exp.And(this=clean, expression=exp.Not(this=value_is_null)))
    return inner_join([op, Aggregate(kinds, (), calls)], [fine], t.names)


def subquery_value(t: Translation, node: exp.Expr, env: Env, scope: ColumnScope, filtering: bool) -> exp.Expr:
    """A subquery in an expression as a value beside the row."""
    if isinstance(node, exp.Subquery):
        return _scalar(t, node, env.with_commons(node), scope)
    if isinstance(node, exp.In) and not filtering:
        hint = "write EXISTS (SELECT 1 FROM … WHERE a = b), which is never null; or make it a part of WHERE … AND …"
        raise env.refuse(node, "IN (SELECT …) below NOT, CASE or in a column: it may be null there", hint)
    inside, conditions, _ = _matching(t, node, scope, env)
    if not conditions:
        one, number = t.names.fresh("any"), t.names.fresh("number")
        some = Aggregate(Projection(inside.op, ((one, "1"),)), (one,), ())
        t.attached[number] = Attached(Aggregate(some, (), (AggregateCall(number, "count(*)", "count"),)))
        return exp.paren(exp.EQ(this=ref(number), expression=exp.Literal.number(1)))
    pairs, op = _pairs(t, inside, conditions, node, env)
    mark = t.names.fresh("mark")
    keys = tuple(dict.fromkeys(column for _, column in pairs))
    t.attached[mark] = Attached(
        Projection(Aggregate(op, keys, ()), (*pass_through(keys), (mark, "true"))), tuple(pairs)
    )
    return exp.paren(exp.Not(this=exp.Is(this=ref(mark), expression=exp.Null())))


def _pairs(
    t: Translation, inside: SelectSource, conditions: list[exp.Expr], node: exp.Expr, env: Env
) -> tuple[list[tuple[exp.Expr, str]], Operator]:
    """Conditions about a row outside as pairs of what is there and a column here."""
    own = set(inside.op.columns)
    outer, here = [], []
    for one in conditions:
        sides = [one.left, one.right] if isinstance(one, exp.EQ) else []
        sides.sort(key=lambda side: bool(refs(side) & own))
        if not sides or refs(sides[0]) & own or not refs(sides[1]) <= own:
            hint = "compare columns of both sides with =; in WHERE … AND EXISTS (…) other conditions can be added"
            raise env.refuse(node, "a subquery about the row outside, by something else than an equality", hint)
        outer.append(sides[0].unnest())
        here.append(sides[1].unnest())
    op, columns = with_columns(inside.op, here, t.names, "key")
    return list(zip(outer, columns, strict=True)), op


def _scalar(t: Translation, node: exp.Subquery, env: Env, scope: ColumnScope) -> exp.Expr:
    """The one value of a subquery: an aggregate of all its rows, or of those that match the row outside."""
    query = node.this
    clauses = ("group", "having", "limit", "offset", "qualify", "distinct")
    aggregates = isinstance(query, exp.Select) and any(is_aggregate(part) for part in query.expressions[0].walk())
    if not aggregates or any(query.args.get(one) for one in clauses) or len(query.expressions) != 1:
        hint = "make it an aggregate of all rows, e.g. (SELECT max(x) FROM …), or join the table"
        raise env.refuse(node, "a subquery as a value that may have no row, or several", hint)
    env = env.with_commons(query)
    inside = select_source(t, query, env, scope)
    grouping = Grouping(t, inside.op, env)
    pairs: list[tuple[exp.Expr, str]] = []
    if inside.correlated:
        _check_around(t, node, inside.correlated, inside, scope, env)
        pairs, grouping.op = _pairs(t, inside, inside.correlated, node, env)
        for _, column in pairs:
            grouping.key(ref(column))
    item = t.resolved(query.expressions[0].unalias(), ColumnScope(inside.columns), env)
    result = grouping.rewritten(item)
    attached = Attached(grouping.done(), tuple(pairs))
    for call in grouping.calls.values():
        t.attached[call.name] = attached
    result = result.transform(lambda part: _value_without_match(part, grouping)) if pairs else result
    return exp.paren(result)


def _value_without_match(part: exp.Expr, grouping: Grouping) -> exp.Expr:
    """A call, or what it gives for a row outside that nothing matches."""
    call = next((one for one in grouping.calls.values() if part == ref(one.name)), None)
    if call is None or call.function not in _COUNTS + _ARRAYS:
        return part
    nothing = exp.Anonymous(this="array") if call.function in _ARRAYS else exp.Literal.number(0)
    return exp.Anonymous(this="coalesce", expressions=[ref(call.name), nothing])
