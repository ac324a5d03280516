"""Functional dependencies between columns, and the key derived from them.

Column names are unique in a view, so a dependency of an operator still holds above it. Each source of rows has a
virtual column `row:n` that identifies its rows: columns that determine all virtual columns are a key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp, parse_one

from headrace.core.tables import TableShape
from headrace.sql.canonical import conjuncts
from headrace.views.algebra.dialect import Verbatim
from headrace.views.algebra.names import as_column, columns_in
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
    inputs_of,
)
from headrace.views.algebra.types import comparable
from headrace.views.compile.pushdown import generates_rows

_NUMBERS = ("row_number()", "rank()", "dense_rank()", "ntile(")
_FIELD = re.compile(r"`\w+`\.`\w+`")


@dataclass(frozen=True)
class Dependency:
    """A functional dependency: rows that agree on `determinant` agree on `dependent`."""

    determinant: frozenset[str]
    dependent: frozenset[str]
    solid: bool = False
    """Whether `determinant` is never null: then it still holds for rows that an outer join filled with nulls."""


@dataclass(frozen=True)
class Facts:
    """The virtual row columns and the functional dependencies of a relation."""

    rows: frozenset[str]
    dependencies: tuple[Dependency, ...] = ()

    def closure(self, columns: Iterable[str]) -> set[str]:
        """All columns determined by the given ones."""
        determined = set(columns)
        changed = True
        while changed:
            new = {
                name
                for dependency in self.dependencies
                if dependency.determinant <= determined
                for name in dependency.dependent - determined
            }
            determined |= new
            changed = bool(new)
        return determined

    def key(self, columns: Sequence[str]) -> tuple[str, ...]:
        """A minimal key among the columns, preferring the first ones; empty if there is none."""
        chosen = list(dict.fromkeys(columns))
        if not self.rows <= self.closure(chosen):
            return ()
        for column in reversed(columns):
            rest = [name for name in chosen if name != column]
            if self.rows <= self.closure(rest):
                chosen = rest
        return tuple(chosen)


def facts(op: Operator, tables: Mapping[str, TableShape]) -> Facts:
    """The facts about the rows of an operator."""
    match op:
        case Scan():
            return _scan(op, tables[op.table])
        case Projection():
            return _project(op, facts(op.input, tables))
        case Selection():
            below = facts(op.input, tables)
            return Facts(below.rows, (*below.dependencies, *_filter(op.condition, column_types(op, tables))))
        case UnionAll():
            return Facts(frozenset([_row(op.columns)]))
        case Join():
            return _join(op, [facts(input_, tables) for input_ in op.inputs], column_types(op, tables))
        case Match():
            return _match(op, facts(op.left, tables), facts(op.right, tables), column_types(op, tables))
        case Aggregate():
            return _aggregate(op, facts(op.input, tables))
        case Ranked():
            return _ranked(op, facts(op.input, tables))


def _row(columns: Sequence[str]) -> str:
    return f"row:{','.join(columns[:1])}"


def _both_ways(left: str, right: str) -> tuple[Dependency, Dependency]:
    return Dependency(frozenset([left]), frozenset([right])), Dependency(frozenset([right]), frozenset([left]))


def _scan(op: Scan, shape: TableShape) -> Facts:
    names = {source: name for name, source in op.fields}
    rows = frozenset([_row(op.columns)])
    if not shape.key or not set(shape.key) <= set(names):
        return Facts(rows)
    key = frozenset(names[column] for column in shape.key)
    return Facts(rows, (Dependency(key, rows | set(op.columns), solid=True),))


def _project(op: Projection, below: Facts) -> Facts:
    dependencies, rows = list(below.dependencies), below.rows
    for name, source in op.expressions:
        column = as_column(source)
        if column is not None:
            dependencies += _both_ways(column, name)
        elif generates_rows(source):
            row_column = frozenset([f"row:{name}"])
            # a row has each window once; elements of an array may repeat
            if source.startswith("window("):
                dependencies.append(Dependency(rows | {name}, row_column))
                dependencies += [
                    Dependency(frozenset([f"{name}.{end}"]), frozenset([name])) for end in ("start", "end")
                ]
            rows = rows | row_column
        elif _FIELD.fullmatch(source):
            dependencies += _both_ways(source.replace("`", ""), name)
        else:
            dependencies.append(Dependency(frozenset(columns_in(source)), frozenset([name])))
    return Facts(rows, tuple(dependencies))


def column_types(op: Operator, tables: Mapping[str, TableShape]) -> dict[str, pa.DataType]:
    """Column types, also of operators below, as far as they are known without Spark."""
    types = {name: kind for input_ in inputs_of(op) for name, kind in column_types(input_, tables).items()}
    match op:
        case Scan():
            types |= {name: tables[op.table].columns.field(source).type for name, source in op.fields}
        case Projection():
            columns = [(name, as_column(source)) for name, source in op.expressions]
            types |= {name: types[column] for name, column in columns if column in types}
        case Aggregate():
            types |= {call.name: pa.int64() for call in op.calls if call.function == "count"}
        case Ranked():
            types |= {name: pa.int32() for name, source in op.expressions if source.startswith(_NUMBERS)}
        case _:
            pass
    return types


def _is_determined(column: str, other: str, types: Mapping[str, pa.DataType]) -> bool:
    """Whether `other`, equal to `column`, determines it: not for '01' = 1 and '1' = 1, where 1 fits two strings."""
    column_type, other_type = types.get(column), types.get(other)
    if column_type is None or other_type is None:
        return False
    return comparable(column_type, other_type) or not (
        pa.types.is_string(column_type) or pa.types.is_floating(other_type)
    )


def _equal(left: str, right: str, types: Mapping[str, pa.DataType]) -> list[Dependency]:
    pairs = ((left, right), (right, left))
    return [Dependency(frozenset([b]), frozenset([a])) for a, b in pairs if _is_determined(a, b, types)]


def _filter(condition: str, types: Mapping[str, pa.DataType]) -> list[Dependency]:
    """`a = 1` makes a column constant, unless it is a string; other conditions are ignored."""
    dependencies = []
    for part in conjuncts(parse_one(condition, dialect=Verbatim)):
        if isinstance(part, exp.EQ) and isinstance(part.left, exp.Column) and isinstance(part.right, exp.Literal):
            kind = types.get(part.left.name)
            if part.right.is_string or (kind is not None and not pa.types.is_string(kind)):
                dependencies.append(Dependency(frozenset(), frozenset([part.left.name])))
    return dependencies


def _join(op: Join, inputs: list[Facts], types: Mapping[str, pa.DataType]) -> Facts:
    dependencies = [dependency for input_ in inputs for dependency in input_.dependencies]
    dependencies += [dependency for pair in op.equal for dependency in _equal(pair.left, pair.right, types)]
    return Facts(frozenset(name for input_ in inputs for name in input_.rows), tuple(dependencies))


def _match(op: Match, left: Facts, right: Facts, types: Mapping[str, pa.DataType]) -> Facts:
    if op.kind in ("semi", "anti"):
        return left
    rows = left.rows | right.rows
    left_dependencies = left.dependencies if op.kind == "left" else _after_null_fill(left.dependencies, right.rows)
    right_dependencies = right.dependencies if op.kind == "right" else _after_null_fill(right.dependencies, left.rows)
    between = []
    if op.kind != "full":
        # the equal columns are a key of the optional side: each preserved row has at most one match
        preserved, optional = (left, right) if op.kind == "left" else (right, left)
        pairs = [(pair.left, pair.right) if op.kind == "left" else (pair.right, pair.left) for pair in op.equal]
        determined_columns = [column for own, column in pairs if _is_determined(column, own, types)]
        determined = Facts(frozenset(), optional.dependencies).closure(determined_columns)
        if optional.rows <= determined:
            between.append(Dependency(frozenset(preserved.rows), frozenset(optional.rows | determined)))
    return Facts(rows, (*left_dependencies, *right_dependencies, *between))


def _after_null_fill(dependencies: Iterable[Dependency], others: frozenset[str]) -> list[Dependency]:
    """Dependencies of a null-filled side: a solid one still holds, any other only per row of the other side."""
    return [
        dependency if dependency.solid else Dependency(dependency.determinant | others, dependency.dependent)
        for dependency in dependencies
    ]


def _aggregate(op: Aggregate, below: Facts) -> Facts:
    rows = frozenset([_row(op.columns)])
    keys = frozenset(op.keys)
    dependencies = [
        Dependency(dependency.determinant, dependency.dependent & keys, dependency.solid)
        for dependency in below.dependencies
        if {column.partition(".")[0] for column in dependency.determinant} <= keys
    ]
    return Facts(rows, (Dependency(keys, rows | set(op.columns)), *dependencies))


def _ranked(op: Ranked, below: Facts) -> Facts:
    all_columns = below.rows | set(op.columns)
    numbered = [name for name, source in op.expressions if source.startswith("row_number()")]
    dependencies = [Dependency(frozenset([*op.partition, name]), all_columns) for name in numbered]
    return Facts(below.rows, (*below.dependencies, *dependencies))
