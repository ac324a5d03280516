"""Which columns determine others, and so which identify a row.

Names of columns are unique in a view, so what one operator knows stays true above it. That a row is there once is
told by a column of its own, `row:n`, which nobody selects: columns that determine all of these are a key.
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
    """Rows that agree on `given` agree on `then`."""

    given: frozenset[str]
    then: frozenset[str]
    solid: bool = False
    """Whether `given` is never null: then it stays true among rows that an outer join filled with nulls."""


@dataclass(frozen=True)
class Facts:
    """What is known of a relation."""

    rows: frozenset[str]
    rules: tuple[Dependency, ...] = ()

    def closure(self, columns: Iterable[str]) -> set[str]:
        """All that is determined by some columns."""
        known = set(columns)
        grown = True
        while grown:
            new = {name for rule in self.rules if rule.given <= known for name in rule.then - known}
            known |= new
            grown = bool(new)
        return known

    def key(self, columns: Sequence[str]) -> tuple[str, ...]:
        """The fewest of the columns that identify a row, the first ones if there is a choice; nothing if none do."""
        chosen = list(dict.fromkeys(columns))
        if not self.rows <= self.closure(chosen):
            return ()
        for one in reversed(columns):
            rest = [name for name in chosen if name != one]
            if self.rows <= self.closure(rest):
                chosen = rest
        return tuple(chosen)


def facts(op: Operator, tables: Mapping[str, TableShape]) -> Facts:
    """What is known of the rows of an operator."""
    match op:
        case Scan():
            return _scan(op, tables[op.table])
        case Projection():
            return _project(op, facts(op.input, tables))
        case Selection():
            found = facts(op.input, tables)
            return Facts(found.rows, (*found.rules, *_filter(op.condition, column_types(op, tables))))
        case UnionAll():
            return Facts(frozenset([_row(op.columns)]))
        case Join():
            return _join(op, [facts(one, tables) for one in op.inputs], column_types(op, tables))
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
    key = frozenset(names[one] for one in shape.key)
    return Facts(rows, (Dependency(key, rows | set(op.columns), solid=True),))


def _project(op: Projection, found: Facts) -> Facts:
    rules, rows = list(found.rules), found.rows
    for name, source in op.expressions:
        column = as_column(source)
        if column is not None:
            rules += _both_ways(column, name)
        elif generates_rows(source):
            more = frozenset([f"row:{name}"])
            # of one row, each window is there once; elements of an array may be alike
            if source.startswith("window("):
                rules.append(Dependency(rows | {name}, more))
                rules += [Dependency(frozenset([f"{name}.{end}"]), frozenset([name])) for end in ("start", "end")]
            rows = rows | more
        elif _FIELD.fullmatch(source):
            rules += _both_ways(source.replace("`", ""), name)
        else:
            rules.append(Dependency(frozenset(columns_in(source)), frozenset([name])))
    return Facts(rows, tuple(rules))


def column_types(op: Operator, tables: Mapping[str, TableShape]) -> dict[str, pa.DataType]:
    """The types of columns, also of those below, where they are known without asking Spark."""
    found = {name: kind for one in inputs_of(op) for name, kind in column_types(one, tables).items()}
    match op:
        case Scan():
            found |= {name: tables[op.table].columns.field(source).type for name, source in op.fields}
        case Projection():
            columns = [(name, as_column(source)) for name, source in op.expressions]
            found |= {name: found[column] for name, column in columns if column in found}
        case Aggregate():
            found |= {call.name: pa.int64() for call in op.calls if call.function == "count"}
        case Ranked():
            found |= {name: pa.int32() for name, source in op.expressions if source.startswith(_NUMBERS)}
        case _:
            pass
    return found


def _is_determined(column: str, other: str, known: Mapping[str, pa.DataType]) -> bool:
    """Whether a column is known when one is that equals it: `'01' = 1` and `'1' = 1`, so 1 does not tell the text."""
    kind, given = known.get(column), known.get(other)
    if kind is None or given is None:
        return False
    return comparable(kind, given) or not (pa.types.is_string(kind) or pa.types.is_floating(given))


def _equal(left: str, right: str, known: Mapping[str, pa.DataType]) -> list[Dependency]:
    pairs = ((left, right), (right, left))
    return [Dependency(frozenset([b]), frozenset([a])) for a, b in pairs if _is_determined(a, b, known)]


def _filter(condition: str, known: Mapping[str, pa.DataType]) -> list[Dependency]:
    """`a = 1` makes a column always the same, unless it is a text; nothing else is looked for."""
    found = []
    for part in conjuncts(parse_one(condition, dialect=Verbatim)):
        if isinstance(part, exp.EQ) and isinstance(part.left, exp.Column) and isinstance(part.right, exp.Literal):
            kind = known.get(part.left.name)
            if part.right.is_string or (kind is not None and not pa.types.is_string(kind)):
                found.append(Dependency(frozenset(), frozenset([part.left.name])))
    return found


def _join(op: Join, inputs: list[Facts], known: Mapping[str, pa.DataType]) -> Facts:
    rules = [rule for one in inputs for rule in one.rules]
    rules += [rule for pair in op.equal for rule in _equal(pair.left, pair.right, known)]
    return Facts(frozenset(name for one in inputs for name in one.rows), tuple(rules))


def _match(op: Match, left: Facts, right: Facts, known: Mapping[str, pa.DataType]) -> Facts:
    if op.kind in ("semi", "anti"):
        return left
    rows = left.rows | right.rows
    kept_left = left.rules if op.kind == "left" else _after_null_fill(left.rules, right.rows)
    kept_right = right.rules if op.kind == "right" else _after_null_fill(right.rules, left.rows)
    between = []
    if op.kind != "full":
        # equal to the key of the other side: at most one row of it, or none, belongs to each row
        kept, other = (left, right) if op.kind == "left" else (right, left)
        pairs = [(one.left, one.right) if op.kind == "left" else (one.right, one.left) for one in op.equal]
        told = [column for mine, column in pairs if _is_determined(column, mine, known)]
        determined = Facts(frozenset(), other.rules).closure(told)
        if other.rows <= determined:
            between.append(Dependency(frozenset(kept.rows), frozenset(other.rows | determined)))
    return Facts(rows, (*kept_left, *kept_right, *between))


def _after_null_fill(rules: Iterable[Dependency], others: frozenset[str]) -> list[Dependency]:
    """Rules of a side whose columns may be nulls: they hold for all rows, or only beside the same row of the other."""
    return [rule if rule.solid else Dependency(rule.given | others, rule.then) for rule in rules]


def _aggregate(op: Aggregate, found: Facts) -> Facts:
    rows = frozenset([_row(op.columns)])
    within = frozenset(op.keys)
    kept = [
        Dependency(rule.given, rule.then & within, rule.solid)
        for rule in found.rules
        if {one.partition(".")[0] for one in rule.given} <= within
    ]
    return Facts(rows, (Dependency(within, rows | set(op.columns)), *kept))


def _ranked(op: Ranked, found: Facts) -> Facts:
    everything = found.rows | set(op.columns)
    numbered = [name for name, source in op.expressions if source.startswith("row_number()")]
    rules = [Dependency(frozenset([*op.partition, name]), everything) for name in numbered]
    return Facts(found.rows, (*found.rules, *rules))
