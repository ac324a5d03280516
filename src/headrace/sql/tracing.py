"""Columns of a query traced down to its inputs, and the stateful operators met on the way.

Spark binds what it keeps by position, not by name: `sum(a), sum(b)` written the other way round would be read back the
wrong way round, without a word. So order is part of what is described here. Where something is not traced for certain,
UnclearError says so.
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
    """The query has something in it that is not traced."""


@dataclass(frozen=True)
class Leaf:
    """An input of a query: its columns in order, None when they are not known."""

    name: str
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Inlined:
    """A query that an input's name stands for, with inputs of its own."""

    query: Query
    inputs: Mapping[str, Given]


Given = Leaf | Inlined


@dataclass
class Operators:
    """What a query keeps, and which columns of which inputs have a part in it."""

    found: list[dict[str, Any]] = field(default_factory=list)
    columns: set[tuple[str, ...]] = field(default_factory=set)
    """Input, column and fields of a column that keys, aggregates and joins are made of."""


_Path = tuple[str, ...]
"""A column and the fields of it that are used."""


def _of(name: str, needed: set[_Path]) -> list[_Path]:
    return sorted(path for path in needed if path[0] == name)


class _Relation:
    """Rows with columns, and how they came about."""

    def outputs(self) -> list[str]:
        """The names of the columns, lower-case, in order."""
        raise NotImplementedError

    def trace(self, column: str, fields: Sequence[str], used: Operators) -> str:
        """A column, or a field of it, in terms of the inputs."""
        raise NotImplementedError

    def emit(self, needed: Sequence[str], into: Operators) -> None:
        """Add the operators it is made by, when only these columns of it are used."""
        raise NotImplementedError

    def kept(self, needed: set[_Path], into: Operators) -> list[str]:
        """The columns of it that are used, in their own order, in terms of the inputs."""
        return [self.trace(path[0], path[1:], into) for name in self.outputs() for path in _of(name, needed)]


@dataclass
class _Input(_Relation):
    leaf: Leaf
    label: str = ""
    """What stands before its columns; nothing when it is the only input."""

    def outputs(self) -> list[str]:
        if self.leaf.columns is None:
            raise UnclearError
        return [column.lower() for column in self.leaf.columns]

    def has(self, column: str) -> bool | None:
        """Whether it has such a column; None when that is not known."""
        return None if self.leaf.columns is None else column in self.outputs()

    def trace(self, column: str, fields: Sequence[str], used: Operators) -> str:
        used.columns.add((self.leaf.name, column, *fields))
        return ".".join([*([self.label] if self.label else []), column, *fields])

    def emit(self, needed: Sequence[str], into: Operators) -> None:
        pass

    def kept(self, needed: set[_Path], into: Operators) -> list[str]:
        if self.leaf.columns is not None:
            return super().kept(needed, into)
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
        place = self.outputs().index(column)
        traced = [part.trace(part.outputs()[place], fields, used) for part in self.parts]
        return " or ".join(dict.fromkeys(traced))

    def emit(self, needed: Sequence[str], into: Operators) -> None:
        names = self.outputs()
        # what is compared as a whole is needed as a whole
        places = [i for i, name in enumerate(names) if self.distinct or name in needed]
        for part in self.parts:
            outputs = part.outputs()
            part.emit([outputs[place] for place in places], into)
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
            self._projections = [pair for one in self.node.expressions for pair in self._expanded(one)]
            names = [name for name, _ in self._projections]
            if len(set(names)) < len(names):
                raise UnclearError
        return self._projections

    def _expanded(self, one: exp.Expr) -> Iterator[tuple[str, exp.Expr]]:
        star = one if isinstance(one, exp.Star) else one.this if isinstance(one, exp.Column) else None
        if not isinstance(star, exp.Star):
            yield one.output_name.lower() or canonical(one), one.unalias()
            return
        if any(star.args.values()) or self._joins_using():
            raise UnclearError
        alias = one.table.lower() if isinstance(one, exp.Column) else None
        for name, source in self.sources.items():
            if alias in (None, name):
                for column in source.outputs():
                    yield column, exp.column(column, table=name)

    def outputs(self) -> list[str]:
        return [name for name, _ in self._all()]

    def _expression(self, name: str) -> exp.Expr:
        found = next((expression for known, expression in self._all() if known == name), None)
        if found is None:
            raise UnclearError
        return found

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
        """The source (None for what the query makes itself), the column and the fields of it."""
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
        return [(one.alias.lower(), one) for one in self.node.expressions if isinstance(one, exp.Alias)]

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
        """The expressions after GROUP BY, with numbers and names of the SELECT list replaced by what they stand for."""
        group = self.node.args.get("group")
        if group is None:
            return []
        if group.args.get("all") or any(group.args.get(key) for key in ("cube", "rollup", "grouping_sets", "totals")):
            raise UnclearError
        found = []
        for one in group.expressions:
            if isinstance(one, exp.Literal) and one.is_int and 0 < int(one.name) <= len(self.node.expressions):
                found.append(self.node.expressions[int(one.name) - 1].unalias())
            elif isinstance(one, exp.Literal | exp.Rollup | exp.Cube | exp.GroupingSets):
                raise UnclearError
            else:
                found.append(one)
        return found

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
                    "aggregates": list(dict.fromkeys(self._text(one, into) for part in parts for one in _kept(part))),
                }
            )
        if is_distinct(self.node):
            columns = [self._text(one, into) for one in projections]
            into.found.append({"operator": "distinct", "columns": columns})

    def _emit_sources(self, projections: list[exp.Expr], into: Operators) -> None:
        clauses = [self.node.args[key].this for key in ("where", "having") if self.node.args.get(key)]
        later = self._used([*projections, *clauses, *self._keys()])
        joins = self._joins()
        everything = later + self._used([join.args["on"] for join in joins if join.args.get("on")])
        names = list(self.sources)
        for alias, source in self.sources.items():
            source.emit([path[0] for of, path in everything if of == alias], into)
        for number, join in enumerate(joins):
            after = later + self._used([one.args["on"] for one in joins[number:] if one.args.get("on")])
            after += [
                (alias, (u.name.lower(),)) for one in joins for u in one.args.get("using") or () for alias in names
            ]
            into.found.append(self._join(join, names[: number + 1], names[number + 1], after, into))

    def _join(
        self, join: exp.Join, left: list[str], right: str, used: list[tuple[str, _Path]], into: Operators
    ) -> dict[str, Any]:
        def kept(alias: str) -> list[str]:
            return self.sources[alias].kept({path for of, path in used if of == alias}, into)

        on = join.args.get("on")
        keys = [f"both {column.name.lower()}" for column in join.args.get("using") or ()]
        return {
            "operator": "join",
            "type": " ".join(word for word in (join.side, join.kind) if word).lower() or "inner",
            "on": keys + ([self._text(part, into) for part in conjuncts(on)] if on is not None else []),
            "left": [text for alias in left for text in kept(alias)],
            "right": kept(right),
        }

    def _used(self, expressions: Sequence[exp.Expr]) -> list[tuple[str, _Path]]:
        """The columns of the sources that these expressions use; also through names of the SELECT list."""
        found: list[tuple[str, _Path]] = []
        for expression in expressions:
            for column in expression.find_all(exp.Column):
                source, name, *fields = self._resolve([part.name.lower() for part in column.parts])
                if source is not None:
                    found.append((source, (name, *fields)))
                else:
                    aliased = [e for known, e in self._all() if known == name and not _mentions(e, name)]
                    found += self._used(aliased)
        return found


def _mentions(expression: exp.Expr, name: str) -> bool:
    return any(column.parts[0].name.lower() == name for column in expression.find_all(exp.Column))


_WRAPPERS = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)
_TIMES = ("window", "session_window", "window_time")


def _kept(expression: exp.Expr) -> Iterator[exp.Expr]:
    """The aggregates in an expression, first to last; a function nobody knows may be one."""
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
    inputs: Mapping[str, Given]
    leaves: list[_Input] = field(default_factory=list)

    def relation(self, node: exp.Expr) -> _Relation:
        """What a query, or a part of one, gives."""
        if isinstance(node, exp.Subquery) and not _more(node, {"this", "alias", "with_"}):
            return self.relation(node.this)
        if isinstance(node, exp.Union) and not _more(node, {"this", "expression", "distinct", "with_"}):
            return _Union((self.relation(node.this), self.relation(node.expression)), is_distinct(node))
        if isinstance(node, exp.Select) and not _more(node, _KNOWN):
            clause = node.args.get("from_")
            joins = node.args.get("joins") or ()
            if clause is None or any(join.args.get("method") for join in joins):
                raise UnclearError
            named = [self._source(one) for one in (clause.this, *(join.this for join in joins))]
            if len({name for name, _ in named}) < len(named):
                raise UnclearError
            return _SelectRelation(node, dict(named))
        raise UnclearError

    def _source(self, node: exp.Expr) -> tuple[str, _Relation]:
        alias = node.args.get("alias")
        if alias is not None and alias.args.get("columns"):
            raise UnclearError
        if isinstance(node, exp.Subquery):
            return node.alias.lower(), self.relation(node)
        plain = isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier)
        if not plain or _more(node, {"this", "alias"}):
            raise UnclearError
        assert isinstance(node, exp.Table)
        name = node.alias_or_name.lower()
        cte = cte_of(node)
        if cte is not None:
            if cte.args["alias"].args.get("columns") or cte.find_ancestor(exp.With).args.get("recursive"):  # type: ignore[union-attr]
                raise UnclearError
            return name, self.relation(cte.this)
        given = self.inputs.get(node.name.lower())
        if isinstance(given, Inlined):
            inner = _ColumnTracer(given.inputs, self.leaves)
            return name, inner.relation(given.query.tree)
        if given is None:
            raise UnclearError
        leaf = _Input(given)
        self.leaves.append(leaf)
        return name, leaf

    def names_of_leaves(self) -> None:
        """Give each input a name of its own, none when there is only one."""
        if len(self.leaves) < 2:
            return
        seen: dict[str, int] = {}
        for leaf in self.leaves:
            seen[leaf.leaf.name] = seen.get(leaf.leaf.name, 0) + 1
            times = seen[leaf.leaf.name]
            leaf.label = leaf.leaf.name if times == 1 else f"{leaf.leaf.name}_{times}"


def _more(node: exp.Expr, known: set[str]) -> bool:
    """Whether a part of the tree has something this module does not look at."""
    return any(value for key, value in node.args.items() if key not in known)


def trace(query: Query, inputs: Mapping[str, Given]) -> Operators:
    """The stateful operators of a query, in the order in which rows meet them."""
    found = Operators()
    tracer = _ColumnTracer(inputs)
    root = tracer.relation(query.tree)
    tracer.names_of_leaves()
    root.emit(root.outputs(), found)
    return found
