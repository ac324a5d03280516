"""Only what is needed: columns that nobody uses are not read, and Projects that only rename are folded away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from headrace.core.tables import TableShape
from headrace.views.algebra.names import as_column, columns_in, quoted, substitute
from headrace.views.algebra.operators import (
    Aggregate,
    Join,
    Match,
    Operator,
    Projection,
    Ranked,
    Scan,
    Selection,
    UnionAll,
)
from headrace.views.compile.keys import facts
from headrace.views.compile.pushdown import generates_rows
from headrace.views.compile.ranking import TIE_BREAK


def prune(op: Operator, needed: Iterable[str], tables: Mapping[str, TableShape]) -> Operator:
    """The operator with no more columns than these, and those it cannot do without."""
    wanted = set(needed)
    match op:
        case Scan():
            return _scan(op, wanted, tables[op.table])
        case Projection():
            return _project(op, wanted, tables)
        case Selection():
            return replace(op, input=prune(op.input, wanted | columns_in(op.condition), tables))
        case UnionAll():
            return _union(op, wanted, tables)
        case Join():
            asked = wanted | columns_in(op.condition) | {name for one in op.equal for name in (one.left, one.right)}
            return replace(op, inputs=tuple(prune(one, asked, tables) for one in op.inputs))
        case Match():
            asked = wanted | columns_in(op.condition) | {name for one in op.equal for name in (one.left, one.right)}
            return replace(op, left=prune(op.left, asked, tables), right=prune(op.right, asked, tables))
        case Aggregate():
            return _aggregate(op, wanted, tables)
        case Ranked():
            return _ranked(op, wanted, tables)


def _scan(op: Scan, wanted: set[str], shape: TableShape) -> Scan:
    """At least one column: the key's, which changes least."""
    fields = tuple(one for one in op.fields if one[0] in wanted)
    if fields:
        return replace(op, fields=fields)
    least = shape.key[0] if shape.key else op.fields[0][1]
    return replace(op, fields=tuple(one for one in op.fields if one[1] == least))


def _project(op: Projection, wanted: set[str], tables: Mapping[str, TableShape]) -> Operator:
    kept = tuple(one for one in op.expressions if one[0] in wanted or generates_rows(one[1]))
    if not kept:
        return prune(op.input, wanted, tables)  # only how many rows there are matters
    inner = prune(op.input, columns_in(*(source for _, source in kept)), tables)
    return fold_projection(Projection(inner, kept))


def fold_projection(op: Projection) -> Operator:
    """Without what is below it, where that or this only passes columns on."""
    below = op.input
    if op.expressions == tuple((name, quoted(name)) for name in below.columns):
        return below
    names = [as_column(source) for _, source in op.expressions]
    renames = None not in names and len(set(names)) == len(names)
    if isinstance(below, Scan) and renames:
        fields = dict(below.fields)
        return Scan(below.table, tuple((name, fields[as_column(source) or ""]) for name, source in op.expressions))
    if not isinstance(below, Projection):
        return op
    if all(as_column(source) for _, source in below.expressions):
        sources = dict(below.expressions)
        return Projection(below.input, tuple((name, substitute(source, sources)) for name, source in op.expressions))
    if renames and set(names) == set(below.columns):
        sources = dict(below.expressions)
        return Projection(
            below.input, tuple((name, sources[as_column(source) or ""]) for name, source in op.expressions)
        )
    return op


def _union(op: UnionAll, wanted: set[str], tables: Mapping[str, TableShape]) -> UnionAll:
    """All inputs keep the same columns, in the same order."""
    kept = [name for name in op.columns if name in wanted] or [op.columns[0]]
    inputs = []
    for one in op.inputs:
        made = prune(one, kept, tables)
        exact = made if list(made.columns) == kept else Projection(made, tuple((name, quoted(name)) for name in kept))
        inputs.append(exact)
    return UnionAll(tuple(inputs))


def _aggregate(op: Aggregate, wanted: set[str], tables: Mapping[str, TableShape]) -> Aggregate:
    """Keys make the groups, so all of them stay; a group of all rows needs a call."""
    calls = tuple(one for one in op.calls if one.name in wanted)
    if not calls and not op.keys:
        calls = op.calls[:1]
    asked = set(op.keys) | columns_in(*(one.sql for one in calls))
    return replace(op, input=prune(op.input, asked, tables), calls=calls)


def _ranked(op: Ranked, wanted: set[str], tables: Mapping[str, TableShape]) -> Operator:
    """Ties are broken by a key of the rows where there is one, else by all columns that are in use."""
    kept = tuple(one for one in op.expressions if one[0] in wanted)
    if not kept:
        return prune(op.input, wanted, tables)
    asked = (wanted | columns_in(*(source for _, source in kept)) | set(op.partition)) & set(op.input.columns)
    if TIE_BREAK not in columns_in(*(source for _, source in kept)):
        return replace(op, input=prune(op.input, asked, tables), expressions=kept)
    key = facts(op.input, tables).key(sorted(op.input.columns, key=lambda name: name not in asked))
    inner = prune(op.input, asked | set(key), tables)
    ties = [name for name in key or inner.columns if name not in op.partition] or list(inner.columns[:1])
    by = ", ".join(quoted(name) for name in ties)
    return replace(op, input=inner, expressions=tuple((name, substitute(one, {TIE_BREAK: by})) for name, one in kept))
