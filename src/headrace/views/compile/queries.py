"""Compiles queries: SELECT, set operations, ORDER BY with LIMIT."""

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
    env = env.with_ctes(node)
    if isinstance(node, exp.Select):
        return _SelectCompiler(t, node, env, outer).relation()
    if isinstance(node, exp.SetOperation):
        return _ordered(t, _set_operation(t, node, env), node, env)
    if isinstance(node, exp.Subquery):
        return _ordered(t, compile_query(t, node.this, env, outer), node, env)
    raise env.refuse(node, f"{node.key.upper()} as a query", "write SELECT … FROM …")


def _ordered(t: Translation, relation: Relation, node: exp.Expr, env: Env) -> Relation:
    """ORDER BY and LIMIT of a set operation or subquery; they refer to its columns."""
    aliases = {column.name.lower(): ref(column.ref) for column in relation.columns}
    items = [(column.name, ref(column.ref)) for column in relation.columns]
    order = [_order_item(t, item, items, ColumnScope(()), env, aliases) for item in _orders(node)]
    return Relation(apply_limit(t, relation.op, order, node, env), relation.columns)


def _orders(node: exp.Expr) -> list[exp.Expr]:
    clause = node.args.get("order")
    return list(clause.expressions) if clause is not None else []


def _order_item(
    t: Translation, node: exp.Expr, items: Sequence[Item], scope: ColumnScope, env: Env, aliases: Aliases
) -> exp.Expr:
    """An item of ORDER BY: a column of the SELECT by number or name, else an expression over the inputs."""
    value = node.this
    item = node.copy()
    if isinstance(value, exp.Literal) and value.name.isdigit():
        position = int(value.name)
        if not 1 <= position <= len(items):
            raise env.refuse(
                node, f"ORDER BY {position}: there are {len(items)} columns", "use a column's number or name"
            )
        item.set("this", items[position - 1][1].copy())
    else:
        named = value.copy().transform(lambda part: _output_column(part, aliases))
        item.set("this", t.resolve(named, scope, env, aliases))
    return item


def _output_column(part: exp.Expr, aliases: Aliases) -> exp.Expr:
    """A column of the SELECT by its name; inside an aggregate a name refers to an input."""
    if not isinstance(part, exp.Column) or isinstance(part, Ref) or len(part.parts) > 1:
        return part
    aliased, parent = aliases.get(part.name.lower()), part.parent
    while parent is not None and not is_aggregate(parent):
        parent = parent.parent
    if aliased is None or parent is not None:
        return part
    return aliased.copy() if part.parent is None else exp.paren(aliased.copy())


def _set_operation(t: Translation, node: exp.SetOperation, env: Env) -> Relation:
    """UNION, INTERSECT and EXCEPT. Columns correspond by position."""
    if node.args.get("by_name") or node.args.get("side") or node.args.get("on"):
        raise env.refuse(node, "BY NAME", "select the columns of both sides in the same order")
    left, right = compile_query(t, node.left, env), compile_query(t, node.right, env)
    if len(left.columns) != len(right.columns):
        message = f"{node.key.upper()} of {len(left.columns)} and {len(right.columns)} columns"
        raise env.refuse(node, message, "select as many columns on both sides")
    if isinstance(node, exp.Union):
        union = _union(t, left, right)
        return _distinct(union) if node.args.get("distinct") else union
    return _intersect_or_except(t, node, left, right)


def _intersect_or_except(t: Translation, node: exp.SetOperation, left: Relation, right: Relation) -> Relation:
    """INTERSECT and EXCEPT by the number of copies of each row on either side. Types are those of a UNION of both."""
    union = _union(t, *(_with_side(t, side, name) for side, name in ((left, "true"), (right, "false"))))
    columns, is_left = union.columns[:-1], quoted(union.columns[-1].ref)
    left_count, right_count = (t.names.fresh(name) for name in ("ours", "theirs"))
    calls = [
        AggregateCall(name, f"count(*) FILTER (WHERE {condition})", "count", condition=condition)
        for name, condition in ((left_count, is_left), (right_count, f"NOT {is_left}"))
    ]
    op: Operator = Aggregate(union.op, tuple(column.ref for column in columns), tuple(calls))
    is_intersect = isinstance(node, exp.Intersect)
    if node.args.get("distinct"):
        return Relation(
            Selection(op, f"{quoted(left_count)} > 0 AND {quoted(right_count)} {'>' if is_intersect else '='} 0"),
            columns,
        )
    copies = (
        f"least({quoted(left_count)}, {quoted(right_count)})"
        if is_intersect
        else f"{quoted(left_count)} - {quoted(right_count)}"
    )
    copy = (t.names.fresh("copy"), f"explode(array_repeat(0, CAST({copies} AS INT)))")
    return Relation(
        Projection(Selection(op, f"{copies} > 0"), (*pass_through(column.ref for column in columns), copy)), columns
    )


def _with_side(t: Translation, side: Relation, is_left: str) -> Relation:
    """The rows with a column that says which side they belong to."""
    name = t.names.fresh("here")
    op = Projection(side.op, (*pass_through(dict.fromkeys(column.ref for column in side.columns)), (name, is_left)))
    return Relation(op, (*side.columns, VisibleColumn("", "here", name)))


def _union(t: Translation, left: Relation, right: Relation) -> Relation:
    names = [t.names.fresh(column.name) for column in left.columns]
    sides = [
        Projection(side.op, tuple((name, quoted(column.ref)) for name, column in zip(names, side.columns, strict=True)))
        for side in (left, right)
    ]
    columns = tuple(VisibleColumn("", column.name, name) for column, name in zip(left.columns, names, strict=True))
    return Relation(UnionAll(tuple(sides)), columns)


def _distinct(relation: Relation) -> Relation:
    return Relation(
        Aggregate(relation.op, tuple(dict.fromkeys(column.ref for column in relation.columns)), ()), relation.columns
    )


class _SelectCompiler:
    """Compiles one SELECT, clause by clause in the order of evaluation."""

    def __init__(self, t: Translation, node: exp.Select, env: Env, outer: ColumnScope | None) -> None:
        self.t, self.node, self.env = t, _with_named_windows(node, env), env
        source = select_source(t, self.node, env, outer)
        if source.correlated:
            hint = "use a plain SELECT … FROM … WHERE inside IN, EXISTS or an aggregate"
            raise env.refuse(node, "a correlated subquery that is more than a filter", hint)
        self.op: Operator = source.op
        self.scope = ColumnScope(source.columns)

    def relation(self) -> Relation:
        items = self._items()
        aliases = self._grouped_window() | {name.lower(): expression for name, expression in items}
        having, qualify = (self._condition(name, aliases) for name in ("having", "qualify"))
        order = self._order(items, aliases)
        expressions = [*(expression for _, expression in items), *having, *qualify, *order]
        if (
            self.node.args.get("group")
            or self.node.args.get("having")
            or any(has_aggregate(expression) for expression in expressions)
        ):
            having, qualify, order = self._grouped(items, [having, qualify, order], aliases)
        ranking = Ranking(self.t, self.op, self.env)
        items = [(name, ranking.rewrite(expression)) for name, expression in items]
        qualify, order = ([ranking.rewrite(expression) for expression in clause] for clause in (qualify, order))
        self.op = add_filter(self.t.with_subquery_values(ranking.build(), qualify), qualify)
        return self._projected(items, order)

    def _grouped(self, items: list[Item], clauses: list[list[exp.Expr]], aliases: Aliases) -> list[list[exp.Expr]]:
        """Rewrites the expressions to groups; the first of `clauses` is HAVING."""
        grouping = group_by(self.t, self.op, self.node, items, self.scope, self.env, aliases)
        items[:] = [(name, grouping.rewrite(expression)) for name, expression in items]
        rewritten = [[grouping.rewrite(expression) for expression in clause] for clause in clauses]
        self.op = add_filter(self.t.with_subquery_values(grouping.build(), rewritten[0]), rewritten[0])
        return rewritten

    def _projected(self, items: list[Item], order: list[exp.Expr]) -> Relation:
        """The columns of the result; columns for ORDER BY only are dropped after it."""
        self._generate(items)
        if self.node.args.get("distinct"):
            self._refuse_distinct_on()
            relation = _distinct(self.t.project(self.op, items))
            column_of = {
                to_sql(expression): column.ref for (_, expression), column in zip(items, relation.columns, strict=True)
            }
            values = [
                ref(column_of[to_sql(expression.this)]) if to_sql(expression.this) in column_of else expression.this
                for expression in order
            ]
            return Relation(
                apply_limit(self.t, relation.op, _ordering(order, values), self.node, self.env), relation.columns
            )
        limits = self.node.args.get("limit") or self.node.args.get("offset")
        values = [expression.this for expression in order] if limits else []
        self.op, extra = with_columns(self.t.with_subquery_values(self.op, values), values, self.t.names, "order")
        order_items = [("order", ref(column)) for column in extra]
        relation = self.t.project(self.op, [*items, *order_items])
        columns, hidden = relation.columns[: len(items)], relation.columns[len(items) :]
        order_by = _ordering(order, [ref(column.ref) for column in hidden]) if limits else []
        return Relation(apply_limit(self.t, relation.op, order_by, self.node, self.env), columns)

    def _refuse_distinct_on(self) -> None:
        if self.node.args["distinct"].args.get("on"):
            hint = "QUALIFY row_number() OVER (PARTITION BY … ORDER BY …) = 1"
            raise self.env.refuse(self.node, "DISTINCT ON", hint)

    def _generate(self, items: list[Item]) -> None:
        """explode() in the SELECT list becomes a column."""
        for position, (name, expression) in enumerate(items):
            if function_of(expression) not in GENERATORS:
                if any(function_of(part) in GENERATORS for part in expression.walk()):
                    raise self.env.refuse(self.node, "explode() inside an expression", "use LATERAL VIEW explode(…)")
                continue
            assert isinstance(expression, exp.Anonymous), "a generator is a call"
            self.op, columns = explode(self.t, self.op, expression, [], self.env, self.node)
            if len(columns) != 1:
                raise self.env.refuse(self.node, f"{function_of(expression)}() in SELECT", "use LATERAL VIEW")
            items[position] = (name, ref(columns[0][1]))

    def _condition(self, clause: str, aliases: Aliases) -> list[exp.Expr]:
        node = self.node.args.get(clause)
        return [] if node is None else [self.t.resolve(node.this, self.scope, self.env, aliases, filtering=True)]

    def _order(self, items: list[Item], aliases: Aliases) -> list[exp.Expr]:
        if self.node.args.get("limit") is None and self.node.args.get("offset") is None:
            return []  # a view has no order
        return [_order_item(self.t, item, items, self.scope, self.env, aliases) for item in _orders(self.node)]

    def _items(self) -> list[Item]:
        """The columns of the SELECT list with stars expanded; each may use the aliases before it."""
        items: list[Item] = []
        aliases = self._grouped_window()
        for node in self.node.expressions:
            if node.is_star and not isinstance(node, exp.Anonymous):
                items += [(column.name, ref(column.ref)) for column in self._star(node)]
                continue
            value = node.unalias()
            name = node.alias if isinstance(node, exp.Alias) else _column_title(value)
            if isinstance(node, exp.Alias) and name.startswith(("'", '"')):
                raise self.env.refuse(node, f"{name} is a string, not a name", f"write `{name[1:-1]}`")
            resolved = self.t.resolve(value, self.scope, self.env, aliases)
            self._check_outer_columns(resolved, value)
            items.append((name, resolved))
            if isinstance(node, exp.Alias):
                aliases.setdefault(name.lower(), resolved)
        return items

    def _grouped_window(self) -> dict[str, exp.Expr]:
        """GROUP BY window(…) adds a column `window`."""
        group = self.node.args.get("group")
        windows = (
            [expression for expression in group.expressions if function_of(expression) == "window"]
            if group is not None
            else []
        )
        return {"window": self.t.resolve(windows[0], self.scope, self.env)} if windows else {}

    def _check_outer_columns(self, resolved: exp.Expr, node: exp.Expr) -> None:
        outer_columns = refs(resolved) - set(self.op.columns) - set(self.t.attached)
        if outer_columns:
            hint = "only WHERE of a subquery may use columns of the outer query"
            raise self.env.refuse(node, "a column of the outer query in a SELECT list", hint)

    def _star(self, node: exp.Expr) -> Iterator[VisibleColumn]:
        star = node if isinstance(node, exp.Star) else node.this
        excluded = {column.name.lower() for column in star.args.get("except_") or ()}
        if star.args.get("replace") or star.args.get("rename"):
            raise self.env.refuse(node, "REPLACE or RENAME of a star", "name the columns")
        qualifier = node.table.lower() if isinstance(node, exp.Column) else ""
        columns = [
            column
            for column in self.scope.columns
            if column.qualifier == qualifier or (not qualifier and column.listed)
        ]
        if not columns:
            raise self.env.refuse(node, f"{to_sql(node)}: no such table in FROM", "use a table of FROM or its alias")
        names = {column.name.lower() for column in columns}
        for name in excluded - names:
            raise ColumnScope(tuple(columns)).unknown(exp.column(name), self.env)
        return (column for column in columns if column.name.lower() not in excluded)


def _ordering(order: list[exp.Expr], values: Sequence[exp.Expr]) -> list[exp.Expr]:
    items = []
    for item, value in zip(order, values, strict=True):
        copy = item.copy()
        copy.set("this", value.copy())
        items.append(copy)
    return items


def _with_named_windows(node: exp.Select, env: Env) -> exp.Select:
    """Replaces `OVER w` by the definition of w in WINDOW."""
    windows = {window.name.lower(): window for window in node.args.get("windows") or ()}
    copy = node.copy()
    copy.parent = node.parent  # EXISTS and IN depend on their parent
    for window in list(copy.find_all(exp.Window)):
        name = window.args.get("alias")
        if name is None or window.arg_key == "windows":
            continue
        definition = windows.get(name.name.lower())
        if definition is None:
            raise env.refuse(
                window, f"WINDOW {name.name} does not exist", "add WINDOW … AS (PARTITION BY … ORDER BY …)"
            )
        for key in ("partition_by", "order", "spec"):
            if definition.args.get(key) and not window.args.get(key):
                window.set(key, definition.copy().args[key])
        window.set("alias", None)
    return copy


def _column_title(node: exp.Expr) -> str:
    """Spark's name of an unnamed column, with _ for dots, which would make it a field."""
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
    sql = to_sql(short).replace("`", "").replace(".", "_")
    return f"({sql})" if isinstance(node, exp.Binary | exp.Connector) else sql
