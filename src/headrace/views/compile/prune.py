"""Removes unused columns, and projections that only rename."""

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
    """The operator with only the needed columns and those it requires itself."""
    used = set(needed)
    match op:
        case Scan():
            return _scan(op, used, tables[op.table])
        case Projection():
            return _project(op, used, tables)
        case Selection():
            return replace(op, input=prune(op.input, used | columns_in(op.condition), tables))
        case UnionAll():
            return _union(op, used, tables)
        case Join():
            required = used | columns_in(op.condition) | {name for pair in op.equal for name in (pair.left, pair.right)}
            return replace(op, inputs=tuple(prune(input_, required, tables) for input_ in op.inputs))
        case Match():
            required = used | columns_in(op.condition) | {name for pair in op.equal for name in (pair.left, pair.right)}
            return replace(op, left=prune(op.left, required, tables), right=prune(op.right, required, tables))
        case Aggregate():
            return _aggregate(op, used, tables)
        case Ranked():
            return _ranked(op, used, tables)


def _scan(op: Scan, used: set[str], shape: TableShape) -> Scan:
    """Keeps at least one column: of the key, which changes least."""
    fields = tuple(field for field in op.fields if field[0] in used)
    if fields:
        return replace(op, fields=fields)
    minimal = shape.key[0] if shape.key else op.fields[0][1]
    return replace(op, fields=tuple(field for field in op.fields if field[1] == minimal))


def _project(op: Projection, used: set[str], tables: Mapping[str, TableShape]) -> Operator:
    expressions = tuple(
        expression for expression in op.expressions if expression[0] in used or generates_rows(expression[1])
    )
    if not expressions:
        return prune(op.input, used, tables)  # only the number of rows matters
    inner = prune(op.input, columns_in(*(source for _, source in expressions)), tables)
    return fold_projection(Projection(inner, expressions))


def fold_projection(op: Projection) -> Operator:
    """Merges a projection with the operator below it, if one of them only passes columns through."""
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


def _union(op: UnionAll, used: set[str], tables: Mapping[str, TableShape]) -> UnionAll:
    """All inputs have the same columns in the same order."""
    columns = [name for name in op.columns if name in used] or [op.columns[0]]
    inputs = []
    for input_ in op.inputs:
        pruned = prune(input_, columns, tables)
        exact = (
            pruned
            if list(pruned.columns) == columns
            else Projection(pruned, tuple((name, quoted(name)) for name in columns))
        )
        inputs.append(exact)
    return UnionAll(tuple(inputs))


def _aggregate(op: Aggregate, used: set[str], tables: Mapping[str, TableShape]) -> Aggregate:
    """All keys stay, since they define the groups; without keys at least one call stays."""
    calls = tuple(call for call in op.calls if call.name in used)
    if not calls and not op.keys:
        calls = op.calls[:1]
    required = set(op.keys) | columns_in(*(call.sql for call in calls))
    return replace(op, input=prune(op.input, required, tables), calls=calls)


def _ranked(op: Ranked, used: set[str], tables: Mapping[str, TableShape]) -> Operator:
    """A key of the rows breaks ties; without one, all columns in use."""
    expressions = tuple(expression for expression in op.expressions if expression[0] in used)
    if not expressions:
        return prune(op.input, used, tables)
    required = (used | columns_in(*(source for _, source in expressions)) | set(op.partition)) & set(op.input.columns)
    if TIE_BREAK not in columns_in(*(source for _, source in expressions)):
        return replace(op, input=prune(op.input, required, tables), expressions=expressions)
    key = facts(op.input, tables).key(sorted(op.input.columns, key=lambda name: name not in required))
    inner = prune(op.input, required | set(key), tables)
    ties = [name for name in key or inner.columns if name not in op.partition] or list(inner.columns[:1])
    tie_order = ", ".join(quoted(name) for name in ties)
    return replace(
        op,
        input=inner,
        expressions=tuple((name, substitute(expression, {TIE_BREAK: tie_order})) for name, expression in expressions),
    )
