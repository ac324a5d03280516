"""Name resolution in a Dagger query: inputs, their columns and types, the event time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from sqlglot import exp

from headrace.core.schema import TIMESTAMP
from headrace.sql.query import cte_of


@dataclass(frozen=True)
class DialectInput:
    """What is known of an input: its columns, its event-time column, and the alias of that column."""

    schema: pa.Schema | None = None
    event_time: str | None = None
    rowtime: str = "rowtime"

    def names(self) -> set[str]:
        """Its columns in lower case, as far as known."""
        return set() if self.schema is None else {name.lower() for name in self.schema.names}


@dataclass(frozen=True)
class RowtimeMeaning:
    """What `rowtime` is in a relation: a column, or None because `stream` has no event time."""

    column: str | None
    stream: str


@dataclass(frozen=True)
class QueryScope:
    """Resolves names of one query. `inputs` are by lower-case name."""

    inputs: Mapping[str, DialectInput] = field(default_factory=dict)

    def rowtime(self, relation: exp.Expr, name: str) -> RowtimeMeaning | None:
        """The meaning of `name` in a relation if it is the alias of the event time; else None."""
        query = _query_of(relation)
        if query is not None:
            return self._rowtime_of_query(query, name)
        known = self._input(relation)
        if known is None or known.rowtime.lower() != name or name in known.names():
            return None
        return RowtimeMeaning(known.event_time, relation.name)

    def _input(self, relation: exp.Expr) -> DialectInput | None:
        if not isinstance(relation, exp.Table) or cte_of(relation) is not None:
            return None
        return self.inputs.get(relation.name.lower())

    def _rowtime_of_query(self, query: exp.Query, name: str) -> RowtimeMeaning | None:
        """A star passes the event time on; a column of that name is just a column."""
        select = first_select(query)
        if select is None or name in (one.lower() for one in select.named_selects):
            return None
        for star in select.selects:
            if star.is_star:
                for alias, relation in relations(select):
                    wanted = star.table.lower() if isinstance(star, exp.Column) else alias
                    found = self.rowtime(relation, name) if wanted == alias else None
                    if found is not None:
                        return found
        return None

    def kind(self, expression: exp.Expr) -> pa.DataType | None:
        """The type of an expression, if certain."""
        match expression:
            case exp.Paren() | exp.Max() | exp.Min() | exp.Neg() | exp.Alias():
                return self.kind(expression.this)
            case exp.Column() | exp.Dot():
                names = chain(expression)
                return self.path(names, expression.find_ancestor(exp.Select)) if names else None
            case exp.Literal() if expression.is_int:
                return pa.int32()
            case exp.Count() | exp.TimestampDiff() | exp.Extract() | exp.Length() | exp.IntDiv():
                return pa.int64()
            case exp.Sum() if self.is_whole(expression.this):
                return pa.int64()
            case exp.Add() | exp.Sub() | exp.Mul() | exp.Mod():
                whole = self.is_whole(expression.left) and self.is_whole(expression.right)
                return pa.int64() if whole else None
            case exp.Cast():
                return pa.int64() if expression.to.is_type(*exp.DataType.INTEGER_TYPES) else None
        return None

    def is_whole(self, expression: exp.Expr) -> bool:
        """Whether an expression is certainly an integer."""
        kind = self.kind(expression)
        return kind is not None and pa.types.is_integer(kind)

    def path(self, names: Sequence[str], select: exp.Select | None) -> pa.DataType | None:
        """The type of `alias.column.field` or `column.field` as seen from a SELECT."""
        if select is None:
            return None
        for alias, relation in relations(select):
            if len(names) > 1 and names[0].lower() == alias:
                found = self._of_relation(relation, names[1:])
                if found is not None:
                    return found
        found = [kind for _, one in relations(select) if (kind := self._of_relation(one, names)) is not None]
        return found[0] if len(found) == 1 else None

    def _of_relation(self, relation: exp.Expr, names: Sequence[str]) -> pa.DataType | None:
        query = _query_of(relation)
        if query is not None:
            return self._of_query(query, names)
        known = self._input(relation)
        if known is None:
            return None
        if known.event_time is not None and names[0].lower() == known.event_time.lower():
            kind: pa.DataType | None = TIMESTAMP
        else:
            kind = None if known.schema is None else _field(known.schema, names[0])
        return _inside(kind, names[1:])

    def _of_query(self, query: exp.Query, names: Sequence[str]) -> pa.DataType | None:
        select = first_select(query)
        if select is None:
            return None
        for one in select.selects:
            if not one.is_star and one.alias_or_name.lower() == names[0].lower():
                return _inside(self.kind(one), names[1:])
        if any(isinstance(one, exp.Star) for one in select.selects):
            return self.path(names, select)
        return None


def relations(select: exp.Select) -> Iterator[tuple[str, exp.Expr]]:
    """The relations of a SELECT by lower-case alias, in order."""
    clause = select.args.get("from_")
    waiting = [clause.this] if clause is not None else []
    waiting += [join.this for join in select.args.get("joins") or ()]
    while waiting:
        one = waiting.pop(0)
        yield one.alias_or_name.lower(), one
        waiting += [join.this for join in one.args.get("joins") or ()]


def chain(expression: exp.Expr) -> list[str]:
    """The names of `a.b.c`; empty for any other expression."""
    return [part.name for part in identifiers(expression)]


def identifiers(expression: exp.Expr) -> list[exp.Identifier]:
    """The parts of `a.b.c`."""
    if isinstance(expression, exp.Dot):
        head, last = identifiers(expression.this), expression.expression
        return [*head, last] if head and isinstance(last, exp.Identifier) else []
    if isinstance(expression, exp.Column):
        return [part for part in expression.parts if isinstance(part, exp.Identifier)]
    return []


def first_select(query: exp.Expr) -> exp.Select | None:
    """The SELECT that names the columns of a query: the first one of a UNION."""
    while not isinstance(query, exp.Select):
        if not isinstance(query, exp.Subquery | exp.SetOperation):
            return None
        query = query.this
    return query


def _query_of(relation: exp.Expr) -> exp.Query | None:
    """The query of a relation that is not an input; None for `WITH t(a, b)`, which renames columns."""
    named = relation if isinstance(relation, exp.Subquery) else None
    if isinstance(relation, exp.Table):
        named = cte_of(relation)  # type: ignore[assignment]
    if named is None or named.alias_column_names:
        return None
    return named.this if isinstance(named.this, exp.Query) else None


def _field(parent: pa.Schema | pa.StructType, name: str) -> pa.DataType | None:
    return next((part.type for part in parent if part.name.lower() == name.lower()), None)


def _inside(kind: pa.DataType | None, names: Sequence[str]) -> pa.DataType | None:
    for name in names:
        kind = _field(kind, name) if kind is not None and pa.types.is_struct(kind) else None
    # of flows only the column names are known
    return None if kind is None or pa.types.is_null(kind) else kind
