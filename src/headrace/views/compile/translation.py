"""What the parts of a translation share: names, tables, and how expressions find their columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from headrace.core.errors import did_you_mean
from headrace.core.tables import TableShape
from headrace.sql.errors import SqlError
from headrace.views.algebra.dialect import Ref
from headrace.views.algebra.names import FreshNames
from headrace.views.algebra.operators import Equal, Match, Operator, Projection, Scan
from headrace.views.algebra.vocabulary import AGGREGATES, OTHER_GENERATORS, RENAMED, UNSTABLE
from headrace.views.compile.joins import inner_join
from headrace.views.compile.parsing import function_of, to_sql, with_field_names
from headrace.views.compile.pushdown import with_columns
from headrace.views.compile.scope import ColumnScope, Common, Env, Relation, VisibleColumn, refs

_CLOCKS = (exp.CurrentDate, exp.CurrentTimestamp, exp.CurrentTime, exp.CurrentUser, exp.SessionUser)
_TO_TIME = ("to_date", "to_timestamp", "try_to_date", "try_to_timestamp")
_CLOCK_TEXT = re.compile(r"\w+[\s(]*['\"]\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
"""DATE'today', to_date('today')"""
Aliases = Mapping[str, exp.Expr]
"""Names that a SELECT gives to its own columns, in lower case, and the resolved expressions behind them."""


@dataclass(frozen=True)
class Attached:
    """A subquery that gives one value beside a row: joined where the value is used."""

    op: Operator
    pairs: tuple[tuple[exp.Expr, str], ...] = ()
    """Expressions of the row, and the columns of `op` they are equal to; none: `op` has exactly one row."""


@dataclass
class Translation:
    """One view on its way to the algebra."""

    tables: Mapping[str, TableShape]
    views: Mapping[str, Common]
    translate: Callable[[Translation, exp.Expr, Env, ColumnScope | None], Relation]
    value: Callable[[Translation, exp.Expr, Env, ColumnScope, bool], exp.Expr]
    """Of a subquery in an expression; the last argument says that null is as good as false there."""
    names: FreshNames = field(default_factory=FreshNames)
    attached: dict[str, Attached] = field(default_factory=dict)

    def relation(self, node: exp.Expr, env: Env, outer: ColumnScope | None = None) -> Relation:
        """The rows of a query."""
        return self.translate(self, node, env, outer)

    def named(self, table: exp.Expr, name: str, env: Env) -> Relation:
        """The rows of a CTE, a view or a table."""
        key = name.lower()
        if key in env.commons:
            common = env.commons[key]
            return self._common(common, name, table, env)
        for known, shape in self.tables.items():
            if known.lower() == key:
                return self._scan(known, shape)
        if key in self.views:
            if key in env.within:
                chain = " -> ".join((*env.within, key))
                raise env.refuse(table, f"view '{name}' reads itself: {chain}", "break the circle")
            return self._common(self.views[key], name, table, env)
        known_names = [*self.tables, *self.views, *env.commons]
        hint = did_you_mean(name, known_names, "tables and views")
        raise env.query.error_at(table, "unknown-input", f"there is no table or view '{name}'", hint)

    def _common(self, common: Common, name: str, table: exp.Expr, env: Env) -> Relation:
        within = env.within
        inside = common.env
        if common.env.query is not env.query:
            inside = Env(inside.query, inside.commons, (*within, name.lower()))
        found = self.relation(common.node, inside)
        if common.names and len(common.names) != len(found.columns):
            message = f"'{name}' has {len(found.columns)} columns, and {len(common.names)} names for them"
            raise env.refuse(table, message, "give each column one name")
        return found.called(name, common.names)

    def _scan(self, table: str, shape: TableShape) -> Relation:
        fields = tuple((self.names.fresh(name), name) for name in shape.columns.names)
        return Relation(Scan(table, fields), tuple(VisibleColumn(table.lower(), name, made) for made, name in fields))

    def resolved(
        self, node: exp.Expr, scope: ColumnScope, env: Env, aliases: Aliases | None = None, *, filtering: bool = False
    ) -> exp.Expr:
        """The expression over columns of the algebra; subqueries in it are values beside the row.

        With `filtering` it is a condition, of which null is as good as false.
        """

        def one(part: exp.Expr) -> exp.Expr:
            if isinstance(part, Ref):
                return part
            if isinstance(part, exp.Column):
                return self._column(part, scope, env, aliases or {})
            if isinstance(part, exp.Star) and function_of(part.parent or part) != "count":
                raise _no_star(part, env)
            if isinstance(part, exp.Subquery | exp.Exists) or (isinstance(part, exp.In) and part.args.get("query")):
                return self.value(self, part, env, scope, filtering and _is_below_and_or(part))
            if isinstance(part, exp.Select | exp.SetOperation):
                raise env.refuse(part, "a subquery in this place", "put it into FROM, IN, EXISTS or brackets")
            _check_stable(part, env)
            return part

        hint = "give it one: struct(x['y'] AS y)"
        named = with_field_names(node, lambda one: env.refuse(one, "a field of struct() without a name", hint))
        return named.transform(one)

    def _column(self, column: exp.Column, scope: ColumnScope, env: Env, aliases: Aliases) -> exp.Expr:
        if isinstance(column.this, exp.Star):
            raise _no_star(column, env)
        found = scope.resolve(column, env)
        if found is not None:
            return found
        first, *fields = [part.name for part in column.parts]
        meant = aliases.get(first.lower())
        if meant is None:
            raise scope.unknown(column, env)
        node: exp.Expr = exp.paren(meant.copy()) if isinstance(meant, exp.Binary | exp.Not) else meant.copy()
        for name in fields:
            node = exp.Dot(this=node, expression=exp.to_identifier(name, quoted=True))
        return node

    def beside(self, op: Operator, expressions: Sequence[exp.Expr]) -> Operator:
        """The rows with the values of all subqueries that some expressions use."""
        wanted = refs(*expressions) - set(op.columns)
        for name in sorted(wanted & set(self.attached)):
            if name in op.columns:
                continue
            one = self.attached[name]
            op = self.beside(op, [pair[0] for pair in one.pairs])
            op = self._attach(op, one)
        return op

    def _attach(self, op: Operator, one: Attached) -> Operator:
        if not one.pairs:
            return inner_join([op, one.op], [], self.names)
        op, columns = with_columns(op, [pair[0] for pair in one.pairs], self.names, "key")
        equal = tuple(Equal(left, pair[1]) for left, pair in zip(columns, one.pairs, strict=True))
        return Match("left", op, one.op, equal)

    def project(self, op: Operator, expressions: Sequence[tuple[str, exp.Expr]]) -> Relation:
        """Only these, under these names."""
        op = self.beside(op, [one for _, one in expressions])
        named = [(self.names.fresh(name), name, one) for name, one in expressions]
        made = tuple((column, to_sql(one)) for column, _, one in named)
        return Relation(Projection(op, made), tuple(VisibleColumn("", name, column) for column, name, _ in named))


def _no_star(node: exp.Expr, env: Env) -> SqlError:
    return env.refuse(node, "a star inside of an expression", "name the columns")


def _check_stable(node: exp.Expr, env: Env) -> None:
    """Refuse what is not a function of the rows."""
    name = function_of(node)
    if isinstance(node, _CLOCKS):
        name = {"currentdate": "current_date", "currenttimestamp": "current_timestamp", "currenttime": "current_time",
                "currentuser": "current_user", "sessionuser": "session_user"}[node.key]  # fmt: skip
    reason = UNSTABLE.get(name)
    if name == "unix_timestamp" and isinstance(node, exp.Anonymous) and not node.expressions:
        reason = "without an argument it depends on the clock"
    if reason:
        hint = "use a column of a table; a view has to give the same for the same rows"
        raise env.refuse(node, f"{name}() in a view: {reason}", hint)
    if _CLOCK_TEXT.match(to_sql(node) if name.startswith(_TO_TIME) or isinstance(node, exp.Literal) else ""):
        hint = "write the day or the time, or use a column of a table"
        raise env.refuse(node, f"{to_sql(node)} in a view: it depends on the clock", hint)
    if name == "arrays_zip":
        hint = "transform(a, (x, i) -> named_struct('a', x, 'b', b[i]))"
        raise env.refuse(node, "arrays_zip() in a view: the names of its fields are lost", hint)
    if name in OTHER_GENERATORS:
        raise env.refuse(node, f"{name}() in a view: only Spark knows its columns", OTHER_GENERATORS[name])
    if isinstance(node, exp.Anonymous) and name in RENAMED:
        node.set("this", RENAMED[name])


def _is_below_and_or(part: exp.Expr) -> bool:
    """Whether nothing but AND, OR and brackets stand around it: these never make true of a null."""
    parent = part.parent
    while isinstance(parent, exp.And | exp.Or | exp.Paren):
        parent = parent.parent
    return parent is None


def is_aggregate(node: exp.Expr) -> bool:
    """Whether it makes one value of many rows; the function of OVER (…) does not."""
    return function_of(node) in AGGREGATES
