"""Name resolution: the columns of a query's inputs and of the queries around it."""

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
    """A column that a query can refer to."""

    qualifier: str
    name: str
    ref: str
    """Its name in the algebra."""
    listed: bool = True
    """Whether `*` includes it, and it can be used without its qualifier."""


@dataclass(frozen=True)
class Relation:
    """An operator and the names of its columns, in order."""

    op: Operator
    columns: tuple[VisibleColumn, ...]

    def aliased(self, qualifier: str, names: tuple[str, ...] = ()) -> Relation:
        """The relation under an alias, optionally with other column names."""
        new_names = names or tuple(column.name for column in self.columns)
        columns = tuple(
            VisibleColumn(qualifier.lower(), name, column.ref)
            for column, name in zip(self.columns, new_names, strict=True)
        )
        return Relation(self.op, columns)


@dataclass(frozen=True)
class Common:
    """A named query (CTE or view) and the environment in which it is compiled."""

    node: exp.Query
    names: tuple[str, ...]
    env: Env


@dataclass(frozen=True)
class Env:
    """The environment of a query: its text, and the CTEs in scope."""

    query: Query
    commons: Mapping[str, Common]
    within: tuple[str, ...] = ()
    """The views being expanded, the outermost first."""

    def refuse(self, node: exp.Expr, message: str, hint: str) -> SqlError:
        """The error for an unsupported construct; the hint says what to write instead."""
        return self.query.error_at(node, "view-unsupported", message, hint)

    def with_ctes(self, node: exp.Expr) -> Env:
        """The environment inside a query with a WITH clause: each CTE sees those before it."""
        clause = node.args.get("with_")
        if clause is None:
            return self
        if clause.recursive:
            raise self.refuse(clause, "WITH RECURSIVE: a view cannot read itself", "write out a fixed number of steps")
        env, names_seen = self, set[str]()
        for cte in clause.expressions:
            if cte.alias.lower() in names_seen:
                raise self.refuse(cte, f"WITH has two queries named '{cte.alias}'", "give each a unique name")
            names_seen.add(cte.alias.lower())
            names = tuple(column.name for column in cte.args["alias"].columns)
            env = replace(env, commons={**env.commons, cte.alias.lower(): Common(cte.this, names, env)})
        return env


@dataclass(frozen=True)
class ColumnScope:
    """The columns in scope, and the scope of the outer query."""

    columns: tuple[VisibleColumn, ...]
    outer: ColumnScope | None = None

    def resolve(self, column: exp.Column, env: Env) -> exp.Expr | None:
        """A column of the algebra or a field of one; None if no column has that name. Case-insensitive."""
        parts = [part.name for part in column.parts]
        match = self._match(parts, column, env)
        if match is None:
            return self.outer.resolve(column, env) if self.outer is not None else None
        name, fields = match
        node: exp.Expr = ref(name)
        node.this.meta.update(column.parts[0].meta)  # later errors point to it
        for field in fields:
            node = exp.Dot(this=node, expression=exp.to_identifier(field, quoted=True))
        return node

    def _match(self, parts: list[str], column: exp.Column, env: Env) -> tuple[str, list[str]] | None:
        first, *others = [part.lower() for part in parts]
        if others:
            matches = [
                candidate
                for candidate in self.columns
                if candidate.qualifier == first and candidate.name.lower() == others[0]
            ]
            if matches:
                return self._single(matches, column, env), parts[2:]
        matches = [candidate for candidate in self.columns if candidate.listed and candidate.name.lower() == first]
        return (self._single(matches, column, env), parts[1:]) if matches else None

    def _single(self, matches: list[VisibleColumn], column: exp.Column, env: Env) -> str:
        if len({column_.ref for column_ in matches}) > 1:
            choices = " or ".join(
                f"{column_.qualifier}.{column_.name}" if column_.qualifier else column_.name for column_ in matches
            )
            name = column.parts[-1].name
            hint = f"write {choices}"
            raise env.query.error_at(column, "ambiguous-column", f"'{name}' is ambiguous", hint)
        return matches[0].ref

    def unknown(self, column: exp.Column, env: Env) -> SqlError:
        parts = [part.name for part in column.parts]
        qualifiers = {candidate.qualifier for candidate in self.columns if candidate.qualifier}
        qualified = [
            candidate for candidate in self.columns if len(parts) > 1 and candidate.qualifier == parts[0].lower()
        ]
        name = parts[1] if qualified else parts[0]
        names = [candidate.name for candidate in qualified or self.columns]
        if len(parts) > 1 and not qualified:
            names += list(qualifiers)
        where = (
            f"'{parts[0]}'"
            if qualified
            else " and ".join(f"'{candidate}'" for candidate in sorted(qualifiers)) or "the query"
        )
        hint = did_you_mean(name, names, f"columns of {where}")
        return env.query.error_at(column, "unknown-column", f"there is no column '{name}' in {where}", hint)


def refs(*nodes: exp.Expr) -> set[str]:
    """The columns of the algebra that the expressions use."""
    return {column.name for node in nodes for column in node.find_all(Ref)}
