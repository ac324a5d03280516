"""Traces the columns of a query to its inputs, and collects the stateful operators on the way.

Spark binds its state by position, not by name: if `sum(a), sum(b)` is swapped, it silently reads each sum as the other.
So the order is part of the description. UnclearError is raised where a column cannot be traced with certainty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from headrace.sql.canonical import canonical, conjuncts
from headrace.sql.query import Query, cte_of
from headrace.sql.streaming import aggregates, is_distinct


class UnclearError(Exception):
    """The query has a part that cannot be traced."""


@dataclass(frozen=True)
class Leaf:
    """An input of a query: its columns in order; None if unknown."""

    name: str
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Inlined:
    """A query that is inlined for an input's name, with its own inputs."""

    query: Query
    inputs: Mapping[str, TraceInput]


TraceInput = Leaf | Inlined


@dataclass
class Operators:
    """The stateful operators of a query, and the input columns they depend on."""

    found: list[dict[str, Any]] = field(default_factory=list)
    columns: set[tuple[str, ...]] = field(default_factory=set)
    """Input, column and fields used by keys, aggregates and joins."""


_Path = tuple[str, ...]
"""A column and the used field path in it."""


def _paths_of(name: str, needed: set[_Path]) -> list[_Path]:
    return sorted(path for path in needed if path[0] == name)


class _Relation:
    """A relation: its columns and how they are computed."""

    def outputs(self) -> list[str]:
        """The column names in lower case, in order."""
        raise NotImplementedError

    def trace(self, column: str, fields: Sequence[str], used: Operators) -> str:
        """A column, or a field of it, in terms of the inputs."""
        raise NotImplementedError

    def emit(self, needed: Sequence[str], into: Operators) -> None:
        """Add its operators, if only these columns are used."""
        raise NotImplementedError

    def stored_columns(self, needed: set[_Path], into: Operators) -> list[str]:
        """The used columns in their own order, in terms of the inputs."""
        return [self.trace(path[0], path[1:], into) for name in self.outputs() for path in _paths_of(name, needed)]


@dataclass
class _Input(_Relation):
    leaf: Leaf
    label: str = ""
    """The prefix of its columns; empty for the only input."""

    def outputs(self) -> list[str]:
        if self.leaf.columns is None:
            raise UnclearError
        return [column.lower() for column in self.leaf.columns]

    def has(self, column: str) -> bool | None:
        """Whether it has such a column; None if unknown."""
        return None if self.leaf.columns is None else column in self.outputs()

    def trace(self, column: str, fields: Sequence[str], used: Operators) -> str:
        used.columns.add((self.leaf.name, column, *fields))
        return ".".join([*([self.label] if self.label else []), column, *fields])

    def emit(self, needed: Sequence[str], into: Operators) -> None:
        pass

    def stored_columns(self, needed: set[_Path], into: Operators) -> list[str]:
        if self.leaf.columns is not None:
            return super().stored_columns(needed, into)
        return [self.trace(path[0], path[1:], into) for path in sorted(needed)]


@dataclass
class _Union(_Relation):
    parts: tuple[_Relation, _Relation]
    distinct: bool

    def outputs(self) -> list[str]:
        names, others = (part.outputs() for part in self.parts)
        if len(names) != len(others):
            raise UnclearError
        return names

    def trace(self, column: str, fields: Sequence[str], used: Operators) -> str:
        if column not in self.outputs():
            raise UnclearError
        position = self.outputs().index(column)
        traced = [part.trace(part.outputs()[position], fields, used) for part in self.parts]
        return " or ".join(dict.fromkeys(traced))

    def emit(self, needed: Sequence[str], into: Operators) -> None:
        names = self.outputs()
        # DISTINCT compares whole rows, so all columns are needed
        positions = [i for i, name in enumerate(names) if self.distinct or name in needed]
        for part in self.parts:
            outputs = part.outputs()
            part.emit([outputs[position] for position in positions], into)
        if self.distinct:
            into.found.append({"operator": "distinct", "columns": [self.trace(name, (), into) for name in names]})


@dataclass
class _SelectRelation(_Relation):
    node: exp.Select
    sources: dict[str, _Relation]
    """By alias, in order: FROM, then the joins."""

    def __post_init__(self) -> None:
        self._projections: list[tuple[str, exp.Expr]] | None = None

    def _all(self) -> list[tuple[str, exp.Expr]]:
        if self._projections is None:
            self._projections = [pair for item in self.node.expressions for pair in self._expanded(item)]
            names = [name for name, _ in self._projections]
            if len(set(names)) < len(names):
                raise UnclearError
        return self._projections

    def _expanded(self, item: exp.Expr) -> Iterator[tuple[str, exp.Expr]]:
        star = item if isinstance(item, exp.Star) else item.this if isinstance(item, exp.Column) else None
        if not isinstance(star, exp.Star):
            yield item.output_name.lower() or canonical(item), item.unalias()
            return
        if any(star.args.values()) or self._joins_using():
            raise UnclearError
        alias = item.table.lower() if isinstance(item, exp.Column) else None
        for name, source in self.sources.items():
            if alias in (None, name):
                for column in source.outputs():
                    yield column, exp.column(column, table=name)

    def outputs(self) -> list[str]:
        return [name for name, _ in self._all()]

    def _expression(self, name: str) -> exp.Expr:
        match = next((expression for item_name, expression in self._all() if item_name == name), None)
        if match is None:
            raise UnclearError
        return match

    def trace(self, column: str, fields: Sequence[str], used: Operators) -> str:
        text = self._text(self._expression(column), used)
        return ".".join([text, *fields])

    def _text(self, expression: exp.Expr, used: Operators) -> str:
        """An expression in terms of the inputs."""

        def traced(node: exp.Expr) -> exp.Expr:
            if not isinstance(node, exp.Column):
                return node
            text = self._column_text(node, used)
            simple = text.replace(".", "").replace("_", "").isalnum()
            return exp.Var(this=text if simple else f"({text})")

        if expression.find(exp.Query):
            raise UnclearError
        if isinstance(expression, exp.Column):
            return self._column_text(expression, used)
        return canonical(expression.copy().transform(traced))

    def _column_text(self, column: exp.Column, used: Operators) -> str:
        parts = [part.name.lower() for part in column.parts]
        source, name, *fields = self._resolve(parts)
        if source is not None:
            return self.sources[source].trace(name, fields, used)
        aliased = next((e for known, e in self._all() if known == name and not _mentions(e, name)), None)
        if aliased is not None:
            return ".".join([self._text(aliased, used), *fields])
        for key in self._keys():
            if isinstance(key, exp.Anonymous) and key.name.lower() == name:
                return ".".join([self._text(key, used), *fields])
        raise UnclearError

    def _resolve(self, parts: list[str]) -> list[Any]:
        """The source (None for columns of the query itself), the column and its fields."""
        if len(parts) > 1 and parts[0] in self.sources:
            return parts
        names = {alias for alias, source in self.sources.items() if self._has(source, parts[0])}
        if len(names) == 1:
            return [names.pop(), *parts]
        unknown = [a for a, s in self.sources.items() if isinstance(s, _Input) and s.leaf.columns is None]
        own = any(name == parts[0] for name, _ in self._named()) or parts[0] in ("window", "session_window")
        if not names and len(unknown) == 1 and not own:
            return [unknown[0], *parts]
        if not names and not (unknown and not own):
            return [None, *parts]
        raise UnclearError

    def _named(self) -> list[tuple[str, exp.Expr]]:
        return [(item.alias.lower(), item) for item in self.node.expressions if isinstance(item, exp.Alias)]

    @staticmethod
    def _has(source: _Relation, column: str) -> bool:
        if isinstance(source, _Input):
            return bool(source.has(column))
        return column in source.outputs()

    def _joins(self) -> list[exp.Join]:
        return list(self.node.args.get("joins") or ())

    def _joins_using(self) -> bool:
        return any(join.args.get("using") for join in self._joins())

    def _keys(self) -> list[exp.Expr]:
        """The GROUP BY expressions, with ordinals and aliases replaced by the expressions of the SELECT list."""
        group = self.node.args.get("group")
        if group is None:
            return []
        if group.args.get("all") or any(group.args.get(key) for key in ("cube", "rollup", "grouping_sets", "totals")):
            raise UnclearError
        keys = []
        for key in group.expressions:
            if isinstance(key, exp.Literal) and key.is_int and 0 < int(key.name) <= len(self.node.expressions):
                keys.append(self.node.expressions[int(key.name) - 1].unalias())
            elif isinstance(key, exp.Literal | exp.Rollup | exp.Cube | exp.GroupingSets):
                raise UnclearError
            else:
                keys.append(key)
        return keys

    def emit(self, needed: Sequence[str], into: Operators) -> None:
        if is_distinct(self.node):
            needed = self.outputs()
        projections = [self._expression(name) for name in self.outputs() if name in set(needed)]
        self._emit_sources(projections, into)
        having = self.node.args.get("having")
        parts = [*projections, *([having.this] if having is not None else [])]
        if self.node.args.get("group") or aggregates(self.node):
            into.found.append(
                {
                    "operator": "aggregate",
                    "keys": [self._text(key, into) for key in self._keys()],
                    "aggregates": list(
                        dict.fromkeys(
                            self._text(expression, into) for part in parts for expression in _aggregates_in(part)
                        )
                    ),
                }
            )
        if is_distinct(self.node):
            columns = [self._text(expression, into) for expression in projections]
            into.found.append({"operator": "distinct", "columns": columns})

    def _emit_sources(self, projections: list[exp.Expr], into: Operators) -> None:
        clauses = [self.node.args[key].this for key in ("where", "having") if self.node.args.get(key)]
        used_later = self._used([*projections, *clauses, *self._keys()])
        joins = self._joins()
        all_used = used_later + self._used([join.args["on"] for join in joins if join.args.get("on")])
        names = list(self.sources)
        for alias, source in self.sources.items():
            source.emit([path[0] for source_alias, path in all_used if source_alias == alias], into)
        for number, join in enumerate(joins):
            after = used_later + self._used([join_.args["on"] for join_ in joins[number:] if join_.args.get("on")])
            after += [
                (alias, (column.name.lower(),))
                for join_ in joins
                for column in join_.args.get("using") or ()
                for alias in names
            ]
            into.found.append(self._join(join, names[: number + 1], names[number + 1], after, into))

    def _join(
        self, join: exp.Join, left: list[str], right: str, used: list[tuple[str, _Path]], into: Operators
    ) -> dict[str, Any]:
        def used_columns(alias: str) -> list[str]:
            return self.sources[alias].stored_columns(
                {path for source_alias, path in used if source_alias == alias}, into
            )

        on = join.args.get("on")
        keys = [f"both {column.name.lower()}" for column in join.args.get("using") or ()]
        return {
            "operator": "join",
            "type": " ".join(word for word in (join.side, join.kind) if word).lower() or "inner",
            "on": keys + ([self._text(part, into) for part in conjuncts(on)] if on is not None else []),
            "left": [text for alias in left for text in used_columns(alias)],
            "right": used_columns(right),
        }

    def _used(self, expressions: Sequence[exp.Expr]) -> list[tuple[str, _Path]]:
        """The columns of the sources that these expressions use, also through aliases of the SELECT list."""
        columns: list[tuple[str, _Path]] = []
        for expression in expressions:
            for column in expression.find_all(exp.Column):
                source, name, *fields = self._resolve([part.name.lower() for part in column.parts])
                if source is not None:
                    columns.append((source, (name, *fields)))
                else:
                    aliased = [
                        expression_
                        for item_name, expression_ in self._all()
                        if item_name == name and not _mentions(expression_, name)
                    ]
                    columns += self._used(aliased)
        return columns


def _mentions(expression: exp.Expr, name: str) -> bool:
    return any(column.parts[0].name.lower() == name for column in expression.find_all(exp.Column))


_WRAPPERS = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)
_TIMES = ("window", "session_window", "window_time")


def _aggregates_in(expression: exp.Expr) -> Iterator[exp.Expr]:
    """The aggregates in an expression, in order; an unknown function may be one."""
    for node in expression.find_all(exp.AggFunc, exp.Anonymous, bfs=False):
        if isinstance(node, exp.Anonymous) and node.name.lower() in _TIMES:
            continue
        if node.find_ancestor(exp.AggFunc) is not None and node is not expression:
            continue
        whole: exp.Expr = node
        while isinstance(whole.parent, _WRAPPERS):
            whole = whole.parent
        yield whole


_KNOWN = {"expressions", "from_", "joins", "where", "group", "having", "distinct", "with_", "hint"}


@dataclass
class _ColumnTracer:
    inputs: Mapping[str, TraceInput]
    leaves: list[_Input] = field(default_factory=list)

    def relation(self, node: exp.Expr) -> _Relation:
        """The relation of a query or a part of one."""
        if isinstance(node, exp.Subquery) and not _has_other_parts(node, {"this", "alias", "with_"}):
            return self.relation(node.this)
        if isinstance(node, exp.Union) and not _has_other_parts(node, {"this", "expression", "distinct", "with_"}):
            return _Union((self.relation(node.this), self.relation(node.expression)), is_distinct(node))
        if isinstance(node, exp.Select) and not _has_other_parts(node, _KNOWN):
            clause = node.args.get("from_")
            joins = node.args.get("joins") or ()
            if clause is None or any(join.args.get("method") for join in joins):
                raise UnclearError
            sources = [self._source(source) for source in (clause.this, *(join.this for join in joins))]
            if len({name for name, _ in sources}) < len(sources):
                raise UnclearError
            return _SelectRelation(node, dict(sources))
        raise UnclearError

    def _source(self, node: exp.Expr) -> tuple[str, _Relation]:
        alias = node.args.get("alias")
        if alias is not None and alias.args.get("columns"):
            raise UnclearError
        if isinstance(node, exp.Subquery):
            return node.alias.lower(), self.relation(node)
        plain = isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier)
        if not plain or _has_other_parts(node, {"this", "alias"}):
            raise UnclearError
        assert isinstance(node, exp.Table)
        name = node.alias_or_name.lower()
        cte = cte_of(node)
        if cte is not None:
            if cte.args["alias"].args.get("columns") or cte.find_ancestor(exp.With).args.get("recursive"):  # type: ignore[union-attr]
                raise UnclearError
            return name, self.relation(cte.this)
        input_ = self.inputs.get(node.name.lower())
        if isinstance(input_, Inlined):
            inner = _ColumnTracer(input_.inputs, self.leaves)
            return name, inner.relation(input_.query.tree)
        if input_ is None:
            raise UnclearError
        leaf = _Input(input_)
        self.leaves.append(leaf)
        return name, leaf

    def label_leaves(self) -> None:
        """Give each input a unique label; none if there is only one."""
        if len(self.leaves) < 2:
            return
        uses: dict[str, int] = {}
        for leaf in self.leaves:
            uses[leaf.leaf.name] = uses.get(leaf.leaf.name, 0) + 1
            number = uses[leaf.leaf.name]
            leaf.label = leaf.leaf.name if number == 1 else f"{leaf.leaf.name}_{number}"


def _has_other_parts(node: exp.Expr, known: set[str]) -> bool:
    """Whether a node has arguments that this module does not handle."""
    return any(value for key, value in node.args.items() if key not in known)


def trace(query: Query, inputs: Mapping[str, TraceInput]) -> Operators:
    """The stateful operators of a query in the order of the dataflow."""
    operators = Operators()
    tracer = _ColumnTracer(inputs)
    root = tracer.relation(query.tree)
    tracer.label_leaves()
    root.emit(root.outputs(), operators)
    return operators
