"""SQL over tables as operators of the algebra: what it means, without what it looks like.

The text is read by sqlglot, every column is found in the tables, and each clause becomes an operator. What is not a
function of the rows of the tables, or cannot be kept, is refused with the reason and what to write instead.
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
    """A view of the tables, and of other views by their texts. `key` are columns of the result that identify a row."""
    others = {name.lower(): _common(text) for name, text in (views or {}).items()}
    parsed, tree = parse_view(sql)
    translation = Translation(tables, others, translate=compile_query, value=subquery_value)
    found = compile_query(translation, tree, Env(parsed, {}))
    names = _unique([one.name for one in found.columns])
    root = _root(found, translation, tables)
    declared = _declared(key, names)
    columns = [one.ref for one in found.columns]
    derived = facts(found.op, tables).key(columns)
    by_column = dict(zip(reversed(columns), reversed(names), strict=True))
    return ViewPlan(root, tuple(names), declared or tuple(by_column[one] for one in derived))


def _common(text: str) -> Common:
    parsed, tree = parse_view(text)
    return Common(tree, (), Env(parsed, {}))


def _root(found: Relation, t: Translation, tables: Mapping[str, TableShape]) -> Operator:
    """The result has exactly these columns, each under a name of its own."""
    columns = [one.ref for one in found.columns]
    op = prune(found.op, columns, tables)
    if list(op.columns) == columns:
        return op
    names = [name if columns.index(name) == place else t.names.fresh(name) for place, name in enumerate(columns)]
    return fold_projection(
        Projection(op, tuple((name, f"`{column}`") for name, column in zip(names, columns, strict=True)))
    )


def _unique(names: Sequence[str]) -> list[str]:
    """Names as they are; what is there twice gets a number: id, id_1."""
    taken: set[str] = set()
    made = []
    for name in names:
        candidate, number = name, 0
        while candidate.lower() in taken or (number and candidate.lower() in {one.lower() for one in names}):
            number += 1
            candidate = f"{name}_{number}"
        taken.add(candidate.lower())
        made.append(candidate)
    return made


def _declared(key: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    known = {name.lower(): name for name in names}
    for one in key:
        if one.lower() not in known:
            hint = did_you_mean(one, names, "columns of the view")
            raise ProjectError("unknown-column", f"key: the view has no column '{one}'", hint=hint)
    return tuple(known[one.lower()] for one in key)
