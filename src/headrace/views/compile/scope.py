"""What a query can name at some place: the columns of its inputs, and those of the queries around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from headrace.core.errors import did_you_mean
from headrace.sql.errors import SqlError
from headrace.sql.query import Query
from headrace.views.algebra.dialect import Ref
from headrace.views.algebra.operators import Operator
from headrace.views.compile.parsing import ref


@dataclass(frozen=True)
class VisibleColumn:
    """A column that can be named."""

    qualifier: str
    name: str
    ref: str
    """Its name in the algebra."""
    listed: bool = True
    """Whether `*` gives it, and it can be named without its qualifier."""


@dataclass(frozen=True)
class Relation:
    """Some rows, and the names of their columns in order."""

    op: Operator
    columns: tuple[VisibleColumn, ...]

    def called(self, qualifier: str, names: tuple[str, ...] = ()) -> Relation:
        """The same under an alias, perhaps with other names of its columns."""
        given = names or tuple(one.name for one in self.columns)
        seen = tuple(
            VisibleColumn(qualifier.lower(), name, one.ref) for one, name in zip(self.columns, given, strict=True)
        )
        return Relation(self.op, seen)


@dataclass(frozen=True)
class Common:
    """A query that has a name: a CTE or another view, and what it sees itself."""

    node: exp.Query
    names: tuple[str, ...]
    env: Env


@dataclass(frozen=True)
class Env:
    """Where a query stands: its text, and the names that are not those of tables."""

    query: Query
    commons: Mapping[str, Common]
    within: tuple[str, ...] = ()
    """The views that are being written out, the outermost first."""

    def refuse(self, node: exp.Expr, message: str, hint: str) -> SqlError:
        """The error for what no view can have, with what to write instead."""
        return self.query.error_at(node, "view-unsupported", message, hint)

    def with_commons(self, node: exp.Expr) -> Env:
        """Inside of a query that has a WITH: each CTE sees those before it."""
        clause = node.args.get("with_")
        if clause is None:
            return self
        if clause.recursive:
            raise self.refuse(clause, "WITH RECURSIVE: a view cannot read itself", "write out a fixed number of steps")
        env, given = self, set[str]()
        for cte in clause.expressions:
            if cte.alias.lower() in given:
                raise self.refuse(cte, f"WITH has two queries of the name '{cte.alias}'", "give each its own name")
            given.add(cte.alias.lower())
            names = tuple(column.name for column in cte.args["alias"].columns)
            env = replace(env, commons={**env.commons, cte.alias.lower(): Common(cte.this, names, env)})
        return env


@dataclass(frozen=True)
class ColumnScope:
    """The columns in sight."""

    columns: tuple[VisibleColumn, ...]
    outer: ColumnScope | None = None

    def resolve(self, column: exp.Column, env: Env) -> exp.Expr | None:
        """A column of the algebra, or a field of one; None when nothing has that name. Case does not matter."""
        parts = [part.name for part in column.parts]
        found = self._found(parts, column, env)
        if found is None:
            return self.outer.resolve(column, env) if self.outer is not None else None
        name, fields = found
        node: exp.Expr = ref(name)
        node.this.meta.update(column.parts[0].meta)  # errors later on point to it
        for one in fields:
            node = exp.Dot(this=node, expression=exp.to_identifier(one, quoted=True))
        return node

    def _found(self, parts: list[str], column: exp.Column, env: Env) -> tuple[str, list[str]] | None:
        first, *others = [part.lower() for part in parts]
        if others:
            matches = [one for one in self.columns if one.qualifier == first and one.name.lower() == others[0]]
            if matches:
                return self._one(matches, column, env), parts[2:]
        matches = [one for one in self.columns if one.listed and one.name.lower() == first]
        return (self._one(matches, column, env), parts[1:]) if matches else None

    def _one(self, matches: list[VisibleColumn], column: exp.Column, env: Env) -> str:
        if len({one.ref for one in matches}) > 1:
            choices = " or ".join(f"{one.qualifier}.{one.name}" if one.qualifier else one.name for one in matches)
            name = column.parts[-1].name
            hint = f"write {choices}"
            raise env.query.error_at(column, "ambiguous-column", f"'{name}' can be more than one column", hint)
        return matches[0].ref

    def unknown(self, column: exp.Column, env: Env) -> SqlError:
        """The error for a name that nothing has."""
        parts = [part.name for part in column.parts]
        qualifiers = {one.qualifier for one in self.columns if one.qualifier}
        within = [one for one in self.columns if len(parts) > 1 and one.qualifier == parts[0].lower()]
        name = parts[1] if within else parts[0]
        known = [one.name for one in within or self.columns]
        if len(parts) > 1 and not within:
            known += list(qualifiers)
        where = f"'{parts[0]}'" if within else " and ".join(f"'{one}'" for one in sorted(qualifiers)) or "the query"
        hint = did_you_mean(name, known, f"columns of {where}")
        return env.query.error_at(column, "unknown-column", f"there is no column '{name}' in {where}", hint)


def refs(*nodes: exp.Expr) -> set[str]:
    """The columns of the algebra that some expressions use."""
    return {one.name for node in nodes for one in node.find_all(Ref)}
