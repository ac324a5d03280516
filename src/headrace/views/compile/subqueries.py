"""Compiles FROM and WHERE of a SELECT, and subqueries in conditions and expressions."""

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

# not null for an empty input
_COUNTS = ("count", "count_if", "regr_count", "approx_count_distinct")
_ARRAYS = ("collect_list", "collect_set", "array_agg")


@dataclass
class SelectSource:
    """FROM and WHERE of a SELECT, compiled."""

    op: Operator
    columns: tuple[VisibleColumn, ...]
    correlated: list[exp.Expr]
    """Conditions that also use columns of the outer query."""


def select_source(t: Translation, select: exp.Select, env: Env, outer: ColumnScope | None = None) -> SelectSource:
    inputs = sources(t, select, env, outer)
    scope = ColumnScope(inputs.columns, outer)
    where = select.args.get("where")
    subquery_tests, correlated = [], []
    for condition in conditions_of(where.this if where else None):
        if _subquery_test(condition) is not None:
            subquery_tests.append(condition)
            continue
        resolved = t.resolve(condition, scope, env, filtering=True)
        if any(is_aggregate(node) for node in resolved.walk()):
            raise env.refuse(condition, "an aggregate in WHERE: WHERE is evaluated before GROUP BY", "use HAVING")
        if any(function_of(node) == "window" or isinstance(node, exp.Window) for node in resolved.walk()):
            raise env.refuse(condition, "a window in WHERE", "compute it in a subquery, or use QUALIFY")
        if _is_outer(resolved, scope):
            correlated.append(resolved)
        else:
            inputs.conditions.append(resolved)
    subquery_conditions = [node for node in inputs.conditions if refs(node) & set(t.attached)]
    inputs.conditions = [node for node in inputs.conditions if node not in subquery_conditions]
    op = inputs.join(t)
    op = add_filter(t.with_subquery_values(op, subquery_conditions), subquery_conditions)
    for condition in subquery_tests:
        op = _apply_test(t, op, condition, scope, env)
    return SelectSource(op, inputs.columns, correlated)


def _is_outer(node: exp.Expr, scope: ColumnScope) -> bool:
    """Whether an expression uses a column of an outer query."""
    outer, columns = scope.outer, refs(node)
    while outer is not None:
        if columns & {column.ref for column in outer.columns}:
            return True
        outer = outer.outer
    return False


def _subquery_test(condition: exp.Expr) -> tuple[bool, exp.Expr] | None:
    """A condition that is only [NOT] EXISTS or [NOT] IN (SELECT …), and whether it is without NOT."""
    inner = condition.this.unnest() if isinstance(condition, exp.Not) else condition
    is_test = isinstance(inner, exp.Exists) or (isinstance(inner, exp.In) and inner.args.get("query"))
    return (inner is condition, inner) if is_test else None


def _apply_test(t: Translation, op: Operator, condition: exp.Expr, scope: ColumnScope, env: Env) -> Operator:
    """The rows for which a subquery has a row, or has none."""
    parsed = _subquery_test(condition)
    assert parsed is not None, "checked by the caller"
    positive, test = parsed
    kind: Literal["semi", "anti"] = "semi" if positive else "anti"
    inside, conditions, nullable = _matching(t, test, scope, env)
    op = t.with_subquery_values(op, conditions)
    if not conditions:
        return _if_any_row(t, op, inside.op, positive)
    matched = match_join(kind, op, inside.op, conditions, t.names)
    if matched is None:
        raise no_equality(env, test, "EXISTS")
    if positive or not nullable:
        return matched
    if len(nullable) > 1 or len(conditions) > 1:
        hint = "write NOT EXISTS (SELECT 1 FROM … WHERE a = b), which ignores nulls"
        raise env.refuse(test, "NOT IN of several columns, or of a correlated subquery", hint)
    return _without_nulls(t, matched, inside.op, *nullable[0])


def _matching(
    t: Translation, test: exp.Expr, scope: ColumnScope, env: Env
) -> tuple[SelectSource, list[exp.Expr], list[tuple[exp.Expr, str]]]:
    """The rows of the subquery, the conditions of a match with an outer row, and the pairs of IN."""
    query = test.args["query"].this if isinstance(test, exp.In) else test.this
    query = query.this if isinstance(query, exp.Subquery) else query
    env = env.with_ctes(query)
    outer_values = _values(t, test.this, scope, env) if isinstance(test, exp.In) else []
    if not _is_simple(query):
        relation = t.relation(query, env, scope)
        inside = SelectSource(relation.op, relation.columns, [])
        columns = [item.ref for item in relation.columns]
    else:
        inside = select_source(t, query, env, scope)
        items = (
            [t.resolve(item.unalias(), ColumnScope(inside.columns), env) for item in _items(query)]
            if outer_values
            else []
        )
        inside.op, columns = with_columns(t.with_subquery_values(inside.op, items), items, t.names)
    if outer_values and len(columns) != len(outer_values):
        message = f"IN compares {len(outer_values)} values with {len(columns)} columns"
        raise env.refuse(test, message, "select one column per value before IN")
    pairs = list(zip(outer_values, columns, strict=True)) if outer_values else []
    conditions = [*inside.correlated, *(exp.EQ(this=item, expression=ref(column)) for item, column in pairs)]
    _check_outer_level(t, test, conditions, inside, scope, env)
    return inside, conditions, pairs


def _check_outer_level(
    t: Translation, node: exp.Expr, conditions: list[exp.Expr], inside: SelectSource, scope: ColumnScope, env: Env
) -> None:
    """Refuse a subquery that uses columns of a query further out than the next one."""
    visible = {column.ref for column in scope.columns} | set(inside.op.columns) | set(t.attached)
    if refs(*conditions) - visible:
        hint = "join that table in the query in between"
        raise env.refuse(node, "a subquery that refers to a query two levels out", hint)


def _items(query: exp.Select) -> list[exp.Expr]:
    return list(query.expressions)


def _values(t: Translation, node: exp.Expr, scope: ColumnScope, env: Env) -> list[exp.Expr]:
    node = node.unnest()
    values = node.expressions if isinstance(node, exp.Tuple) else [node]
    return [t.resolve(value, scope, env) for value in values]


def _is_simple(query: exp.Expr) -> bool:
    """Whether each row of the subquery is a row of its FROM, so that correlated conditions can be matched."""
    exists = isinstance(query.parent, exp.Exists)  # columns and LIMIT 1 do not matter then
    limit = query.args.get("limit")
    limit_is_harmless = exists and limit is not None and limit.expression.name not in ("0", "")
    clauses = ("group", "having", "offset", "qualify", *(() if limit_is_harmless else ("limit",)))
    if not isinstance(query, exp.Select) or any(query.args.get(clause) for clause in clauses):
        return False
    return not any((item.is_star and not exists) or _needs_all_rows(item) for item in query.expressions)


def _needs_all_rows(node: exp.Expr) -> bool:
    return any(is_aggregate(part) or isinstance(part, exp.Window) for part in node.walk())


def _if_any_row(t: Translation, op: Operator, inside: Operator, positive: bool) -> Operator:
    """All rows if the subquery has a row (or has none). Changes only with the subquery's first or last row."""
    has_rows = Aggregate(Projection(inside, ((constant := t.names.fresh("any"), "1"),)), (constant,), ())
    if positive:
        return inner_join([op, has_rows], [], t.names)
    number = t.names.fresh("number")
    row_count = Aggregate(has_rows, (), (AggregateCall(number, "count(*)", "count"),))
    return inner_join([op, row_count], [exp.EQ(this=ref(number), expression=exp.Literal.number(0))], t.names)


def _without_nulls(t: Translation, op: Operator, inside: Operator, value: exp.Expr, column: str) -> Operator:
    """NOT IN is not true if either side is null, unless the subquery is empty."""
    is_null, total, nulls = t.names.fresh("is_null"), t.names.fresh("some"), t.names.fresh("nulls")
    by_null = Aggregate(Projection(inside, ((is_null, f"{quoted(column)} IS NULL"),)), (is_null,), ())
    calls = (
        AggregateCall(total, "count(*)", "count"),
        AggregateCall(nulls, f"count_if({quoted(is_null)})", "count_if"),
    )
    value_is_null = exp.Is(this=value, expression=exp.Null())
    empty = exp.EQ(this=ref(total), expression=exp.Literal.number(0))
    clean = exp.EQ(this=ref(nulls), expression=exp.Literal.number(0))
    passes = exp.Or(this=empty, expression=exp.And(this=clean, expression=exp.Not(this=value_is_null)))
    return inner_join([op, Aggregate(by_null, (), calls)], [passes], t.names)


def subquery_value(t: Translation, node: exp.Expr, env: Env, scope: ColumnScope, filtering: bool) -> exp.Expr:
    """A subquery in an expression as a column joined to the row."""
    if isinstance(node, exp.Subquery):
        return _scalar(t, node, env.with_ctes(node), scope)
    if isinstance(node, exp.In) and not filtering:
        hint = "write EXISTS (SELECT 1 FROM … WHERE a = b), which is never null, or put it into WHERE … AND …"
        raise env.refuse(node, "IN (SELECT …) below NOT, CASE or in a column: its result may be null", hint)
    inside, conditions, _ = _matching(t, node, scope, env)
    if not conditions:
        constant, number = t.names.fresh("any"), t.names.fresh("number")
        has_rows = Aggregate(Projection(inside.op, ((constant, "1"),)), (constant,), ())
        t.attached[number] = Attached(Aggregate(has_rows, (), (AggregateCall(number, "count(*)", "count"),)))
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
    """Correlated conditions as pairs of an outer expression and a column of the subquery."""
    inner_columns = set(inside.op.columns)
    outer_expressions, inner_expressions = [], []
    for condition in conditions:
        sides = [condition.left, condition.right] if isinstance(condition, exp.EQ) else []
        sides.sort(key=lambda side: bool(refs(side) & inner_columns))
        if not sides or refs(sides[0]) & inner_columns or not refs(sides[1]) <= inner_columns:
            hint = "compare columns of both sides with =; WHERE … AND EXISTS (…) allows other conditions too"
            raise env.refuse(node, "a correlated subquery with a condition other than an equality", hint)
        outer_expressions.append(sides[0].unnest())
        inner_expressions.append(sides[1].unnest())
    op, columns = with_columns(inside.op, inner_expressions, t.names, "key")
    return list(zip(outer_expressions, columns, strict=True)), op


def _scalar(t: Translation, node: exp.Subquery, env: Env, scope: ColumnScope) -> exp.Expr:
    """A scalar subquery: an aggregate of all its rows, or of those that match the outer row."""
    query = node.this
    clauses = ("group", "having", "limit", "offset", "qualify", "distinct")
    aggregates = isinstance(query, exp.Select) and any(is_aggregate(part) for part in query.expressions[0].walk())
    if not aggregates or any(query.args.get(clause) for clause in clauses) or len(query.expressions) != 1:
        hint = "aggregate all rows, e.g. (SELECT max(x) FROM …), or join the table"
        raise env.refuse(node, "a scalar subquery that may return no row or several", hint)
    env = env.with_ctes(query)
    inside = select_source(t, query, env, scope)
    grouping = Grouping(t, inside.op, env)
    pairs: list[tuple[exp.Expr, str]] = []
    if inside.correlated:
        _check_outer_level(t, node, inside.correlated, inside, scope, env)
        pairs, grouping.op = _pairs(t, inside, inside.correlated, node, env)
        for _, column in pairs:
            grouping.add_key(ref(column))
    item = t.resolve(query.expressions[0].unalias(), ColumnScope(inside.columns), env)
    result = grouping.rewrite(item)
    attached = Attached(grouping.build(), tuple(pairs))
    for call in grouping.calls.values():
        t.attached[call.name] = attached
    result = result.transform(lambda part: _value_without_match(part, grouping)) if pairs else result
    return exp.paren(result)


def _value_without_match(part: exp.Expr, grouping: Grouping) -> exp.Expr:
    """A call, with its value for an outer row without a match."""
    call = next((candidate for candidate in grouping.calls.values() if part == ref(candidate.name)), None)
    if call is None or call.function not in _COUNTS + _ARRAYS:
        return part
    empty_value = exp.Anonymous(this="array") if call.function in _ARRAYS else exp.Literal.number(0)
    return exp.Anonymous(this="coalesce", expressions=[ref(call.name), empty_value])
