"""Compiles a view's SQL to operators of the algebra.

sqlglot parses the text, every column is resolved, and each clause becomes an operator. A query that is not a function
of its tables' rows, or cannot be maintained incrementally, is refused with the reason and what to write instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.tables import TableShape
from headrace.views.algebra.operators import Operator, Projection, ViewPlan
from headrace.views.compile.keys import facts
from headrace.views.compile.parsing import parse_view
from headrace.views.compile.prune import fold_projection, prune
from headrace.views.compile.queries import compile_query
from headrace.views.compile.scope import Common, Env, Relation
from headrace.views.compile.subqueries import subquery_value
from headrace.views.compile.translation import Translation


def normalise(
    sql: str, tables: Mapping[str, TableShape], views: Mapping[str, str] | None = None, key: Sequence[str] = ()
) -> ViewPlan:
    """Compile a view over tables and other views (by their SQL). `key`: the result columns declared as key."""
    other_views = {name.lower(): _common(text) for name, text in (views or {}).items()}
    parsed, tree = parse_view(sql)
    translation = Translation(tables, other_views, translate=compile_query, value=subquery_value)
    result = compile_query(translation, tree, Env(parsed, {}))
    names = _unique([column.name for column in result.columns])
    root = _root(result, translation, tables)
    declared = _declared(key, names)
    columns = [column.ref for column in result.columns]
    derived = facts(result.op, tables).key(columns)
    by_column = dict(zip(reversed(columns), reversed(names), strict=True))
    return ViewPlan(root, tuple(names), declared or tuple(by_column[column] for column in derived))


def _common(text: str) -> Common:
    parsed, tree = parse_view(text)
    return Common(tree, (), Env(parsed, {}))


def _root(result: Relation, t: Translation, tables: Mapping[str, TableShape]) -> Operator:
    """An operator with exactly the columns of the result, under unique names."""
    columns = [column.ref for column in result.columns]
    op = prune(result.op, columns, tables)
    if list(op.columns) == columns:
        return op
    names = [name if columns.index(name) == place else t.names.fresh(name) for place, name in enumerate(columns)]
    return fold_projection(
        Projection(op, tuple((name, f"`{column}`") for name, column in zip(names, columns, strict=True)))
    )


def _unique(names: Sequence[str]) -> list[str]:
    """The names; a repeated name gets a number: id, id_1."""
    taken: set[str] = set()
    unique = []
    for name in names:
        candidate, number = name, 0
        while candidate.lower() in taken or (number and candidate.lower() in {other.lower() for other in names}):
            number += 1
            candidate = f"{name}_{number}"
        taken.add(candidate.lower())
        unique.append(candidate)
    return unique


def _declared(key: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    by_lower_name = {name.lower(): name for name in names}
    for column in key:
        if column.lower() not in by_lower_name:
            hint = did_you_mean(column, names, "columns of the view")
            raise ProjectError("unknown-column", f"key: the view has no column '{column}'", hint=hint)
    return tuple(by_lower_name[column.lower()] for column in key)
