"""Adds computed columns and conditions to an operator; conditions are pushed down as far as possible."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from sqlglot import exp

from headrace.views.algebra.dialect import Ref
from headrace.views.algebra.names import FreshNames, as_column, columns_in, pass_through, substitute
from headrace.views.algebra.operators import Aggregate, Join, Match, Operator, Projection, Ranked, Selection
from headrace.views.algebra.vocabulary import GENERATORS
from headrace.views.compile.parsing import conjunction, to_sql

_GENERATES_ROWS = re.compile(rf"\b({'|'.join(sorted(GENERATORS))}|window)\(")


def with_columns(
    op: Operator, expressions: Sequence[exp.Expr], names: FreshNames, base: str = "x"
) -> tuple[Operator, list[str]]:
    """Add a column for each expression; returns the columns. An expression that is a column already is not added."""
    column_of: dict[str, str] = {}
    columns = []
    for expression in expressions:
        if isinstance(expression, Ref):
            columns.append(expression.name)
            continue
        sql = to_sql(expression)
        column_of.setdefault(sql, names.fresh(base))
        columns.append(column_of[sql])
    if not column_of:
        return op, columns
    added = tuple((name, sql) for sql, name in column_of.items())
    return Projection(op, (*pass_through(op.columns), *added)), columns


def add_filter(op: Operator, conditions: Iterable[exp.Expr]) -> Operator:
    """The rows for which all conditions are true; each condition is pushed down as far as possible."""
    filters = [condition for condition in conditions if not _always(condition)]
    for condition in filters:
        op = _push(op, to_sql(conjunction([condition])))
    return op


def _always(condition: exp.Expr) -> bool:
    return isinstance(condition, exp.Boolean) and bool(condition.this)


def _push(op: Operator, condition: str) -> Operator:
    return _pushed_inside(op, condition) or Selection(op, condition)


def _pushed_inside(op: Operator, condition: str) -> Operator | None:
    """The operator with the condition pushed inside; None if it only applies to the result."""
    names = columns_in(condition) & set(op.columns)
    match op:
        case Selection():
            inner = _pushed_inside(op.input, condition)
            return (
                replace(op, condition=f"{op.condition} AND {condition}") if inner is None else replace(op, input=inner)
            )
        case Projection():
            return _below_project(op, condition, names)
        case Aggregate() if names and names <= set(op.keys):
            return replace(op, input=_push(op.input, condition))
        case Ranked() if names and names <= set(op.partition):
            return replace(op, input=_push(op.input, condition))
        case Match() if names and names <= set(op.left.columns) and op.kind in ("left", "semi", "anti"):
            return replace(op, left=_push(op.left, condition))
        case Match() if names and names <= set(op.right.columns) and op.kind == "right":
            return replace(op, right=_push(op.right, condition))
        case Join():
            return _into_join(op, condition, names)
        case _:
            return None


def _below_project(op: Projection, condition: str, names: set[str]) -> Operator | None:
    """Push a condition on columns that the projection passes through."""
    sources = {name: source for name, source in op.expressions if name in names and as_column(source)}
    if len(sources) < len(names) or not names:
        return None
    return replace(op, input=_push(op.input, substitute(condition, sources)))


def _into_join(op: Join, condition: str, names: set[str]) -> Operator:
    inputs = [_push(input_, condition) if names and names <= set(input_.columns) else input_ for input_ in op.inputs]
    if inputs != list(op.inputs):
        return replace(op, inputs=tuple(inputs))
    return replace(op, condition=f"{op.condition} AND {condition}" if op.condition else condition)


def generates_rows(expression: str) -> bool:
    """Whether an expression of a Projection may give several rows or none. May report too many."""
    return _GENERATES_ROWS.search(expression) is not None
