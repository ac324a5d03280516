"""Shared state of a compilation: generated names, tables, and the resolution of columns and subqueries."""

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
"""The aliases of a SELECT in lower case, and their resolved expressions."""


@dataclass(frozen=True)
class Attached:
    """A subquery that adds one value to a row: joined where the value is used."""

    op: Operator
    pairs: tuple[tuple[exp.Expr, str], ...] = ()
    """Expressions of the row and the columns of `op` they equal; empty: `op` has exactly one row."""


@dataclass
class Translation:
    """The compilation of one view to the algebra."""

    tables: Mapping[str, TableShape]
    views: Mapping[str, Common]
    translate: Callable[[Translation, exp.Expr, Env, ColumnScope | None], Relation]
    value: Callable[[Translation, exp.Expr, Env, ColumnScope, bool], exp.Expr]
    """Compiles a subquery in an expression; the last argument: null counts as false there."""
    names: FreshNames = field(default_factory=FreshNames)
    attached: dict[str, Attached] = field(default_factory=dict)

    def relation(self, node: exp.Expr, env: Env, outer: ColumnScope | None = None) -> Relation:
        return self.translate(self, node, env, outer)

    def table_or_view(self, table: exp.Expr, name: str, env: Env) -> Relation:
        """The rows of a CTE, a view or a table."""
        key = name.lower()
        if key in env.commons:
            common = env.commons[key]
            return self._common(common, name, table, env)
        for table_name, shape in self.tables.items():
            if table_name.lower() == key:
                return self._scan(table_name, shape)
        if key in self.views:
            if key in env.within:
                chain = " -> ".join((*env.within, key))
                raise env.refuse(table, f"view '{name}' reads itself: {chain}", "remove the cycle")
            return self._common(self.views[key], name, table, env)
        names = [*self.tables, *self.views, *env.commons]
        hint = did_you_mean(name, names, "tables and views")
        raise env.query.error_at(table, "unknown-input", f"there is no table or view '{name}'", hint)

    def _common(self, common: Common, name: str, table: exp.Expr, env: Env) -> Relation:
        within = env.within
        inner_env = common.env
        if common.env.query is not env.query:
            inner_env = Env(inner_env.query, inner_env.commons, (*within, name.lower()))
        relation = self.relation(common.node, inner_env)
        if common.names and len(common.names) != len(relation.columns):
            message = f"'{name}' has {len(relation.columns)} columns but {len(common.names)} column names"
            raise env.refuse(table, message, "give one name per column")
        return relation.aliased(name, common.names)

    def _scan(self, table: str, shape: TableShape) -> Relation:
        fields = tuple((self.names.fresh(name), name) for name in shape.columns.names)
        return Relation(
            Scan(table, fields), tuple(VisibleColumn(table.lower(), name, column) for column, name in fields)
        )

    def resolve(
        self, node: exp.Expr, scope: ColumnScope, env: Env, aliases: Aliases | None = None, *, filtering: bool = False
    ) -> exp.Expr:
        """The expression over columns of the algebra; subqueries in it become columns.

        With `filtering` it is a condition, where null counts as false.
        """

        def resolve_part(part: exp.Expr) -> exp.Expr:
            if isinstance(part, Ref):
                return part
            if isinstance(part, exp.Column):
                return self._column(part, scope, env, aliases or {})
            if isinstance(part, exp.Star) and function_of(part.parent or part) != "count":
                raise _no_star(part, env)
            if isinstance(part, exp.Subquery | exp.Exists) or (isinstance(part, exp.In) and part.args.get("query")):
                return self.value(self, part, env, scope, filtering and _is_below_and_or(part))
            if isinstance(part, exp.Select | exp.SetOperation):
                raise env.refuse(part, "a subquery here", "put it into FROM, IN, EXISTS or brackets")
            _check_stable(part, env)
            return part

        hint = "name it: struct(x['y'] AS y)"
        named = with_field_names(node, lambda field_: env.refuse(field_, "a field of struct() without a name", hint))
        return named.transform(resolve_part)

    def _column(self, column: exp.Column, scope: ColumnScope, env: Env, aliases: Aliases) -> exp.Expr:
        if isinstance(column.this, exp.Star):
            raise _no_star(column, env)
        resolved = scope.resolve(column, env)
        if resolved is not None:
            return resolved
        first, *fields = [part.name for part in column.parts]
        aliased_expression = aliases.get(first.lower())
        if aliased_expression is None:
            raise scope.unknown(column, env)
        node: exp.Expr = (
            exp.paren(aliased_expression.copy())
            if isinstance(aliased_expression, exp.Binary | exp.Not)
            else aliased_expression.copy()
        )
        for name in fields:
            node = exp.Dot(this=node, expression=exp.to_identifier(name, quoted=True))
        return node

    def with_subquery_values(self, op: Operator, expressions: Sequence[exp.Expr]) -> Operator:
        """Join the subquery values that the expressions use."""
        missing = refs(*expressions) - set(op.columns)
        for name in sorted(missing & set(self.attached)):
            if name in op.columns:
                continue
            attached = self.attached[name]
            op = self.with_subquery_values(op, [pair[0] for pair in attached.pairs])
            op = self._attach(op, attached)
        return op

    def _attach(self, op: Operator, attached: Attached) -> Operator:
        if not attached.pairs:
            return inner_join([op, attached.op], [], self.names)
        op, columns = with_columns(op, [pair[0] for pair in attached.pairs], self.names, "key")
        equal = tuple(Equal(left, pair[1]) for left, pair in zip(columns, attached.pairs, strict=True))
        return Match("left", op, attached.op, equal)

    def project(self, op: Operator, expressions: Sequence[tuple[str, exp.Expr]]) -> Relation:
        """Project to these expressions under these names."""
        op = self.with_subquery_values(op, [expression for _, expression in expressions])
        named = [(self.names.fresh(name), name, expression) for name, expression in expressions]
        projections = tuple((column, to_sql(expression)) for column, _, expression in named)
        return Relation(
            Projection(op, projections), tuple(VisibleColumn("", name, column) for column, name, _ in named)
        )


def _no_star(node: exp.Expr, env: Env) -> SqlError:
    return env.refuse(node, "a star inside an expression", "name the columns")


def _check_stable(node: exp.Expr, env: Env) -> None:
    """Refuse expressions that are not a function of the rows."""
    name = function_of(node)
    if isinstance(node, _CLOCKS):
        name = {"currentdate": "current_date", "currenttimestamp": "current_timestamp", "currenttime": "current_time",
                "currentuser": "current_user", "sessionuser": "session_user"}[node.key]  # fmt: skip
    reason = UNSTABLE.get(name)
    if name == "unix_timestamp" and isinstance(node, exp.Anonymous) and not node.expressions:
        reason = "without an argument it depends on the clock"
    if reason:
        hint = "use a column of a table; the same rows must always give the same result"
        raise env.refuse(node, f"{name}() in a view: {reason}", hint)
    if _CLOCK_TEXT.match(to_sql(node) if name.startswith(_TO_TIME) or isinstance(node, exp.Literal) else ""):
        hint = "write the date or time, or use a column of a table"
        raise env.refuse(node, f"{to_sql(node)} in a view: it depends on the clock", hint)
    if name == "arrays_zip":
        hint = "transform(a, (x, i) -> named_struct('a', x, 'b', b[i]))"
        raise env.refuse(node, "arrays_zip() in a view: the names of its fields are lost", hint)
    if name in OTHER_GENERATORS:
        raise env.refuse(node, f"{name}() in a view: only Spark knows its columns", OTHER_GENERATORS[name])
    if isinstance(node, exp.Anonymous) and name in RENAMED:
        node.set("this", RENAMED[name])


def _is_below_and_or(part: exp.Expr) -> bool:
    """Whether only AND, OR and brackets surround it: these never turn null into true."""
    parent = part.parent
    while isinstance(parent, exp.And | exp.Or | exp.Paren):
        parent = parent.parent
    return parent is None


def is_aggregate(node: exp.Expr) -> bool:
    """Whether the node calls an aggregate function; true for window aggregates too."""
    return function_of(node) in AGGREGATES
