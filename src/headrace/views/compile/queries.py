"""Queries: SELECT, set operations, and what stands around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import exp

from headrace.views.algebra.dialect import Ref
from headrace.views.algebra.names import pass_through, quoted
from headrace.views.algebra.operators import Aggregate, AggregateCall, Operator, Projection, Selection, UnionAll
from headrace.views.algebra.vocabulary import GENERATORS
from headrace.views.compile.grouping import Item, group_by, has_aggregate
from headrace.views.compile.parsing import function_of, ref, to_sql
from headrace.views.compile.pushdown import add_filter, with_columns
from headrace.views.compile.ranking import Ranking, apply_limit
from headrace.views.compile.scope import ColumnScope, Env, Relation, VisibleColumn, refs
from headrace.views.compile.sources import explode
from headrace.views.compile.subqueries import select_source
from headrace.views.compile.translation import Aliases, Translation, is_aggregate


def compile_query(t: Translation, node: exp.Expr, env: Env, outer: ColumnScope | None = None) -> Relation:
    """The rows of a query."""
    env = env.with_commons(node)
    if isinstance(node, exp.Select):
        return _SelectCompiler(t, node, env, outer).relation()
    if isinstance(node, exp.SetOperation):
        return _ordered(t, _set_operation(t, node, env), node, env)
    if isinstance(node, exp.Subquery):
        return _ordered(t, compile_query(t, node.this, env, outer), node, env)
    raise env.refuse(node, f"{node.key.upper()} as a query", "write SELECT … FROM …")


def _ordered(t: Translation, found: Relation, node: exp.Expr, env: Env) -> Relation:
    """ORDER BY and LIMIT behind a whole query: they name its columns."""
    aliases = {one.name.lower(): ref(one.ref) for one in found.columns}
    items = [(one.name, ref(one.ref)) for one in found.columns]
    order = [_order_item(t, one, items, ColumnScope(()), env, aliases) for one in _orders(node)]
    return Relation(apply_limit(t, found.op, order, node, env), found.columns)


def _orders(node: exp.Expr) -> list[exp.Expr]:
    clause = node.args.get("order")
    return list(clause.expressions) if clause is not None else []


def _order_item(
    t: Translation, node: exp.Expr, items: Sequence[Item], scope: ColumnScope, env: Env, aliases: Aliases
) -> exp.Expr:
    """One item of ORDER BY: a column of the SELECT by number or name first, then of its inputs."""
    value = node.this
    made = node.copy()
    if isinstance(value, exp.Literal) and value.name.isdigit():
        place = int(value.name)
        if not 1 <= place <= len(items):
            raise env.refuse(node, f"ORDER BY {place}: there are {len(items)} columns", "give its number or name")
        made.set("this", items[place - 1][1].copy())
    else:
        named = value.copy().transform(lambda part: _output_column(part, aliases))
        made.set("this", t.resolved(named, scope, env, aliases))
    return made


def _output_column(part: exp.Expr, aliases: Aliases) -> exp.Expr:
    """A column of the SELECT by its name; in an aggregate a name is that of an input."""
    if not isinstance(part, exp.Column) or isinstance(part, Ref) or len(part.parts) > 1:
        return part
    meant, around = aliases.get(part.name.lower()), part.parent
    while around is not None and not is_aggregate(around):
        around = around.parent
    if meant is None or around is not None:
        return part
    return meant.copy() if part.parent is None else exp.paren(meant.copy())


def _set_operation(t: Translation, node: exp.SetOperation, env: Env) -> Relation:
    """UNION, INTERSECT and EXCEPT. Columns belong together by their places."""
    if node.args.get("by_name") or node.args.get("side") or node.args.get("on"):
        raise env.refuse(node, "BY NAME", "select the columns of both sides in the same order")
    left, right = compile_query(t, node.left, env), compile_query(t, node.right, env)
    if len(left.columns) != len(right.columns):
        message = f"{node.key.upper()} of {len(left.columns)} and of {len(right.columns)} columns"
        raise env.refuse(node, message, "select as many columns on both sides")
    if isinstance(node, exp.Union):
        found = _union(t, left, right)
        return _distinct(found) if node.args.get("distinct") else found
    return _intersect_or_except(t, node, left, right)


def _intersect_or_except(t: Translation, node: exp.SetOperation, left: Relation, right: Relation) -> Relation:
    """INTERSECT and EXCEPT by how often each row is on either side. The types are those of a UNION of both."""
    found = _union(t, *(_with_side(t, side, name) for side, name in ((left, "true"), (right, "false"))))
    rows, here = found.columns[:-1], quoted(found.columns[-1].ref)
    ours, theirs = (t.names.fresh(name) for name in ("ours", "theirs"))
    calls = [
        AggregateCall(name, f"count(*) FILTER (WHERE {which})", "count", condition=which)
        for name, which in ((ours, here), (theirs, f"NOT {here}"))
    ]
    op: Operator = Aggregate(found.op, tuple(one.ref for one in rows), tuple(calls))
    both = isinstance(node, exp.Intersect)
    if node.args.get("distinct"):
        return Relation(Selection(op, f"{quoted(ours)} > 0 AND {quoted(theirs)} {'>' if both else '='} 0"), rows)
    times = f"least({quoted(ours)}, {quoted(theirs)})" if both else f"{quoted(ours)} - {quoted(theirs)}"
    copy = (t.names.fresh("copy"), f"explode(array_repeat(0, CAST({times} AS INT)))")
    return Relation(Projection(Selection(op, f"{times} > 0"), (*pass_through(one.ref for one in rows), copy)), rows)


def _with_side(t: Translation, side: Relation, which: str) -> Relation:
    """The rows with a column that says which side they are of."""
    name = t.names.fresh("here")
    op = Projection(side.op, (*pass_through(dict.fromkeys(one.ref for one in side.columns)), (name, which)))
    return Relation(op, (*side.columns, VisibleColumn("", "here", name)))


def _union(t: Translation, left: Relation, right: Relation) -> Relation:
    names = [t.names.fresh(one.name) for one in left.columns]
    sides = [
        Projection(side.op, tuple((name, quoted(one.ref)) for name, one in zip(names, side.columns, strict=True)))
        for side in (left, right)
    ]
    seen = tuple(VisibleColumn("", one.name, name) for one, name in zip(left.columns, names, strict=True))
    return Relation(UnionAll(tuple(sides)), seen)


def _distinct(found: Relation) -> Relation:
    """Each row once."""
    return Relation(Aggregate(found.op, tuple(dict.fromkeys(one.ref for one in found.columns)), ()), found.columns)


class _SelectCompiler:
    """One SELECT, clause by clause in the order in which they mean something."""

    def __init__(self, t: Translation, node: exp.Select, env: Env, outer: ColumnScope | None) -> None:
        self.t, self.node, self.env = t, _with_named_windows(node, env), env
        found = select_source(t, self.node, env, outer)
        if found.correlated:
            hint = "make it a plain SELECT … FROM … WHERE inside of IN, EXISTS or an aggregate"
            raise env.refuse(node, "a subquery about the row outside that is more than a filter", hint)
        self.op: Operator = found.op
        self.scope = ColumnScope(found.columns)

    def relation(self) -> Relation:
        """Its rows."""
        items = self._items()
        aliases = self._grouped_window() | {name.lower(): one for name, one in items}
        having, qualify = (self._condition(name, aliases) for name in ("having", "qualify"))
        order = self._order(items, aliases)
        expressions = [*(one for _, one in items), *having, *qualify, *order]
        if (
            self.node.args.get("group")
            or self.node.args.get("having")
            or any(has_aggregate(one) for one in expressions)
        ):
            having, qualify, order = self._grouped(items, [having, qualify, order], aliases)
        ranking = Ranking(self.t, self.op, self.env)
        items = [(name, ranking.rewritten(one)) for name, one in items]
        qualify, order = ([ranking.rewritten(one) for one in some] for some in (qualify, order))
        self.op = add_filter(self.t.beside(ranking.done(), qualify), qualify)
        return self._projected(items, order)

    def _grouped(self, items: list[Item], rest: list[list[exp.Expr]], aliases: Aliases) -> list[list[exp.Expr]]:
        """The expressions over groups, the first of `rest` being HAVING."""
        grouping = group_by(self.t, self.op, self.node, items, self.scope, self.env, aliases)
        items[:] = [(name, grouping.rewritten(one)) for name, one in items]
        made = [[grouping.rewritten(one) for one in some] for some in rest]
        self.op = add_filter(self.t.beside(grouping.done(), made[0]), made[0])
        return made

    def _projected(self, items: list[Item], order: list[exp.Expr]) -> Relation:
        """The columns of the result; what only ORDER BY needs is dropped after it."""
        self._generate(items)
        if self.node.args.get("distinct"):
            self._refuse_distinct_on()
            found = _distinct(self.t.project(self.op, items))
            named = {to_sql(one): seen.ref for (_, one), seen in zip(items, found.columns, strict=True)}
            values = [ref(named[to_sql(one.this)]) if to_sql(one.this) in named else one.this for one in order]
            return Relation(apply_limit(self.t, found.op, _ordering(order, values), self.node, self.env), found.columns)
        limits = self.node.args.get("limit") or self.node.args.get("offset")
        values = [one.this for one in order] if limits else []
        self.op, extra = with_columns(self.t.beside(self.op, values), values, self.t.names, "order")
        kept = [("order", ref(one)) for one in extra]
        found = self.t.project(self.op, [*items, *kept])
        columns, hidden = found.columns[: len(items)], found.columns[len(items) :]
        by = _ordering(order, [ref(one.ref) for one in hidden]) if limits else []
        return Relation(apply_limit(self.t, found.op, by, self.node, self.env), columns)

    def _refuse_distinct_on(self) -> None:
        if self.node.args["distinct"].args.get("on"):
            hint = "QUALIFY row_number() OVER (PARTITION BY … ORDER BY …) = 1"
            raise self.env.refuse(self.node, "DISTINCT ON", hint)

    def _generate(self, items: list[Item]) -> None:
        """explode() in the SELECT list becomes a column."""
        for place, (name, one) in enumerate(items):
            if function_of(one) not in GENERATORS:
                if any(function_of(part) in GENERATORS for part in one.walk()):
                    raise self.env.refuse(self.node, "explode() inside of an expression", "use LATERAL VIEW explode(…)")
                continue
            assert isinstance(one, exp.Anonymous), "a generator is a call"
            self.op, made = explode(self.t, self.op, one, [], self.env, self.node)
            if len(made) != 1:
                raise self.env.refuse(self.node, f"{function_of(one)}() in SELECT", "use LATERAL VIEW")
            items[place] = (name, ref(made[0][1]))

    def _condition(self, clause: str, aliases: Aliases) -> list[exp.Expr]:
        node = self.node.args.get(clause)
        return [] if node is None else [self.t.resolved(node.this, self.scope, self.env, aliases, filtering=True)]

    def _order(self, items: list[Item], aliases: Aliases) -> list[exp.Expr]:
        if self.node.args.get("limit") is None and self.node.args.get("offset") is None:
            return []  # a view has no order
        return [_order_item(self.t, one, items, self.scope, self.env, aliases) for one in _orders(self.node)]

    def _items(self) -> list[Item]:
        """The columns of the SELECT list, stars written out; each sees the names of those before it."""
        found: list[Item] = []
        aliases = self._grouped_window()
        for node in self.node.expressions:
            if node.is_star and not isinstance(node, exp.Anonymous):
                found += [(one.name, ref(one.ref)) for one in self._star(node)]
                continue
            value = node.unalias()
            name = node.alias if isinstance(node, exp.Alias) else _column_title(value)
            if isinstance(node, exp.Alias) and name.startswith(("'", '"')):
                raise self.env.refuse(node, f"{name} is a text, not a name", f"write `{name[1:-1]}`")
            resolved = self.t.resolved(value, self.scope, self.env, aliases)
            self._check_strays(resolved, value)
            found.append((name, resolved))
            if isinstance(node, exp.Alias):
                aliases.setdefault(name.lower(), resolved)
        return found

    def _grouped_window(self) -> dict[str, exp.Expr]:
        """GROUP BY window(…) gives a column of that name."""
        group = self.node.args.get("group")
        found = [one for one in group.expressions if function_of(one) == "window"] if group is not None else []
        return {"window": self.t.resolved(found[0], self.scope, self.env)} if found else {}

    def _check_strays(self, resolved: exp.Expr, node: exp.Expr) -> None:
        strays = refs(resolved) - set(self.op.columns) - set(self.t.attached)
        if strays:
            hint = "only WHERE of a subquery may name columns of the query around it"
            raise self.env.refuse(node, "a column of the query outside in a SELECT list", hint)

    def _star(self, node: exp.Expr) -> Iterator[VisibleColumn]:
        star = node if isinstance(node, exp.Star) else node.this
        without = {one.name.lower() for one in star.args.get("except_") or ()}
        if star.args.get("replace") or star.args.get("rename"):
            raise self.env.refuse(node, "REPLACE or RENAME of a star", "name the columns")
        qualifier = node.table.lower() if isinstance(node, exp.Column) else ""
        columns = [one for one in self.scope.columns if one.qualifier == qualifier or (not qualifier and one.listed)]
        if not columns:
            raise self.env.refuse(node, f"{to_sql(node)}: there is no such table in FROM", "take a table or its alias")
        known = {one.name.lower() for one in columns}
        for name in without - known:
            raise ColumnScope(tuple(columns)).unknown(exp.column(name), self.env)
        return (one for one in columns if one.name.lower() not in without)


def _ordering(order: list[exp.Expr], values: Sequence[exp.Expr]) -> list[exp.Expr]:
    made = []
    for one, value in zip(order, values, strict=True):
        copy = one.copy()
        copy.set("this", value.copy())
        made.append(copy)
    return made


def _with_named_windows(node: exp.Select, env: Env) -> exp.Select:
    """`OVER w` with what WINDOW says of w."""
    windows = {one.name.lower(): one for one in node.args.get("windows") or ()}
    made = node.copy()
    made.parent = node.parent  # EXISTS and IN look at what is around them
    for window in list(made.find_all(exp.Window)):
        name = window.args.get("alias")
        if name is None or window.arg_key == "windows":
            continue
        meant = windows.get(name.name.lower())
        if meant is None:
            raise env.refuse(window, f"there is no WINDOW {name.name}", "WINDOW … AS (PARTITION BY … ORDER BY …)")
        for key in ("partition_by", "order", "spec"):
            if meant.args.get(key) and not window.args.get(key):
                window.set(key, meant.copy().args[key])
        window.set("alias", None)
    return made


def _column_title(node: exp.Expr) -> str:
    """What Spark would call a column without a name, but for dots, which would make it a field of another."""
    node = node.unnest()
    if isinstance(node, exp.Column | exp.Dot):
        return node.name
    if function_of(node) in GENERATORS:
        return "col"
    if function_of(node) == "count" and isinstance(node.expressions[0] if node.expressions else None, exp.Star):
        return "count(1)"
    short = node.copy().transform(
        lambda part: exp.to_identifier(part.name) if isinstance(part, exp.Column) and part.name != "*" else part
    )
    written = to_sql(short).replace("`", "").replace(".", "_")
    return f"({written})" if isinstance(node, exp.Binary | exp.Connector) else written
