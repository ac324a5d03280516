"""GROUP BY and aggregates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from sqlglot import exp

from headrace.views.algebra.dialect import Ref
from headrace.views.algebra.names import pass_through, quoted
from headrace.views.algebra.operators import Aggregate, AggregateCall, Operator, Projection
from headrace.views.compile.deterministic import deterministic
from headrace.views.compile.keys import facts
from headrace.views.compile.parsing import function_of, ref, to_sql
from headrace.views.compile.pushdown import with_columns
from headrace.views.compile.scope import ColumnScope, Env
from headrace.views.compile.translation import Aliases, Translation, is_aggregate

WRAPPERS = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)
_ONE_ARGUMENT = ("count", "sum", "avg")
Item = tuple[str, exp.Expr]
"""A column of a SELECT: its name and its resolved expression."""


def inner_call(node: exp.Expr) -> exp.Expr:
    """The call inside FILTER (…), WITHIN GROUP (…) and IGNORE NULLS."""
    while isinstance(node, WRAPPERS):
        node = node.this
    return node


def is_window_function(node: exp.Expr) -> bool:
    """Whether the call has OVER (…)."""
    parent = node.parent
    while isinstance(parent, WRAPPERS):
        node, parent = parent, parent.parent
    return isinstance(parent, exp.Window) and node.arg_key == "this"


def has_aggregate(node: exp.Expr) -> bool:
    """Whether an expression contains an aggregate."""
    return any(is_aggregate(part) and not is_window_function(part) for part in node.walk())


@dataclass
class Grouping:
    """Builds the Aggregate of a SELECT: keys and calls are added as its expressions use them."""

    t: Translation
    op: Operator
    env: Env
    keys: list[tuple[exp.Expr, str]] = field(default_factory=list)
    calls: dict[str, AggregateCall] = field(default_factory=dict)
    sets: tuple[str, dict[str, int]] | None = None
    """For ROLLUP, CUBE and GROUPING SETS: the column with the bits of omitted keys, and the bit of each key."""

    def add_key(self, node: exp.Expr) -> None:
        node = node.unnest()
        self.op, (name,) = with_columns(self.t.with_subquery_values(self.op, [node]), [node], self.t.names, _base(node))
        self.keys.append((node, name))

    def rewrite(self, node: exp.Expr) -> exp.Expr:
        """Turn an expression over rows into one over groups."""
        return node.copy().transform(self._rewrite_part)

    def build(self) -> Aggregate:
        return Aggregate(self.op, tuple(dict.fromkeys(name for _, name in self.keys)), tuple(self.calls.values()))

    def _rewrite_part(self, part: exp.Expr) -> exp.Expr:
        for expression, name in self.keys:
            if part == expression:
                return ref(name)
        if isinstance(part, Ref):
            return self._ungrouped(part)
        call = inner_call(part)
        if is_aggregate(call) and not is_window_function(part):
            return ref(self._call(part, call))
        if function_of(part) in ("grouping", "grouping_id"):
            return self._grouping_bits(part)
        return part

    def _ungrouped(self, node: Ref) -> exp.Expr:
        """A column determined by the grouping keys, such as any column of a table grouped by its primary key."""
        attached = self.t.attached.get(node.name)
        if attached is not None and node.name not in self.op.columns:
            pairs = tuple((self.rewrite(outside), column) for outside, column in attached.pairs)
            self.t.attached[node.name] = replace(attached, pairs=pairs)
            return node
        grouped = {name for _, name in self.keys}
        if node.name not in facts(self.op, self.t.tables).closure(grouped):
            base = node.name.rpartition("_")[0]
            hint = f"add it to GROUP BY, or aggregate it: max({base}), min({base}), max_by({base}, …)"
            raise self.env.refuse(node, f"'{base}' is neither in GROUP BY nor in an aggregate", hint)
        self.keys.append((node, node.name))
        return ref(node.name)

    def _call(self, node: exp.Expr, call: exp.Expr) -> str:
        inner_parts = [part for argument in call.expressions for part in argument.walk()]
        if any(
            is_aggregate(part) or isinstance(part, exp.Window) or function_of(part) == "window" for part in inner_parts
        ):
            message = f"{function_of(call)}() of an aggregate or a window"
            raise self.env.refuse(node, message, "compute the inner one in a subquery")
        self.op = self.t.with_subquery_values(self.op, [node])
        stable_call = deterministic(node, self.env)
        sql = to_sql(stable_call)
        if sql not in self.calls:
            self.calls[sql] = _aggregate_call(self.t.names.fresh(function_of(call)), sql, stable_call, call)
        return self.calls[sql].name

    def _grouping_bits(self, node: exp.Expr) -> exp.Expr:
        """grouping(x): 1 where x is aggregated away; grouping_id(): these bits of all keys."""
        if self.sets is None:
            raise self.env.refuse(node, f"{function_of(node)}() without ROLLUP, CUBE or GROUPING SETS", "remove it")
        bits, places = self.sets
        if function_of(node) == "grouping_id" and not node.expressions:
            return ref(bits)
        if function_of(node) == "grouping_id" or to_sql(node.expressions[0]) not in places:
            raise self.env.refuse(node, f"{to_sql(node)}: the argument must be a key of GROUP BY", "name one key")
        place = exp.Literal.number(places[to_sql(node.expressions[0])])
        bit = exp.BitwiseAnd(
            this=exp.Anonymous(this="shiftright", expressions=[ref(bits), place]), expression=exp.Literal.number(1)
        )
        return exp.Anonymous(this="tinyint", expressions=[bit])


def _base(node: exp.Expr) -> str:
    return function_of(node) or "key"


def _aggregate_call(name: str, sql: str, stable_call: exp.Expr, call: exp.Expr) -> AggregateCall:
    """An aggregate call and the parts that decide how it is maintained."""
    function = function_of(call) if function_of(call) != "mean" else "avg"
    core = inner_call(stable_call)
    arguments = core.expressions
    distinct = bool(arguments) and isinstance(arguments[0], exp.Distinct)
    values = arguments[0].expressions if distinct else arguments
    has_argument = function in _ONE_ARGUMENT and len(values) == 1 and not isinstance(values[0], exp.Star)
    where = next((part.expression.this for part in stable_call.walk() if isinstance(part, exp.Filter)), None)
    return AggregateCall(
        name,
        sql,
        function,
        to_sql(values[0]) if has_argument else None,
        distinct,
        None if where is None else to_sql(where),
    )


def group_by(
    t: Translation,
    op: Operator,
    select: exp.Select,
    items: Sequence[Item],
    scope: ColumnScope,
    env: Env,
    aliases: Aliases,
) -> Grouping:
    """The groups of a SELECT; without GROUP BY all rows are one group."""
    clause = select.args.get("group")
    grouping = Grouping(t, op, env)
    if clause is None:
        return grouping
    if clause.args.get("all"):
        for _, item in items:
            if not has_aggregate(item):
                grouping.add_key(item)
        return grouping
    keys, sets = _sets(clause, lambda node: _key(t, node, items, scope, env, aliases))
    for item in keys:
        grouping.add_key(item)
    return grouping if len(sets) == 1 else _with_sets(grouping, keys, sets)


def _key(
    t: Translation, node: exp.Expr, items: Sequence[Item], scope: ColumnScope, env: Env, aliases: Aliases
) -> exp.Expr:
    """An item of GROUP BY: an expression, or a column of the SELECT by number or name."""
    if isinstance(node, exp.Literal) and not node.is_string:
        position = int(node.name) if node.name.isdigit() else 0
        if not 1 <= position <= len(items):
            raise env.refuse(
                node, f"GROUP BY {node.name}: there are {len(items)} columns", "use a column's number or name"
            )
        expression = items[position - 1][1]
    else:
        expression = t.resolve(node, scope, env, aliases)
    if has_aggregate(expression) or expression.find(exp.Window):
        raise env.refuse(node, "GROUP BY of an aggregate", "compute it in a subquery, and group by its column")
    return expression


def _sets(clause: exp.Group, key: Callable[[exp.Expr], exp.Expr]) -> tuple[list[exp.Expr], list[tuple[int, ...]]]:
    """All keys, and the keys of each grouping set by position."""
    keys: list[exp.Expr] = []

    def place(node: exp.Expr) -> int:
        expression = key(node)
        if expression not in keys:
            keys.append(expression)
        return keys.index(expression)

    def several(node: exp.Expr) -> tuple[int, ...]:
        inside = node.expressions if isinstance(node, exp.Tuple) else [node.unnest()]
        return tuple(place(item) for item in inside)

    def subsets(node: exp.Expr) -> list[tuple[int, ...]]:
        if isinstance(node, exp.Rollup | exp.Cube):
            groups = [several(item) for item in node.expressions]
            if isinstance(node, exp.Rollup):
                chosen = [groups[:end] for end in range(len(groups), -1, -1)]
            else:
                chosen = [list(c) for size in range(len(groups), -1, -1) for c in combinations(groups, size)]
            return [tuple(dict.fromkeys(item for group in c for item in group)) for c in chosen]
        if isinstance(node, exp.GroupingSets):
            return [item for inside in node.expressions for item in subsets(inside)]
        return [several(node)]

    nodes = list(clause.expressions)
    for name, kind in (("rollup", exp.Rollup), ("cube", exp.Cube), ("grouping_sets", exp.GroupingSets)):
        for item in clause.args.get(name) or ():
            # GROUP BY a, b WITH ROLLUP
            nodes = [item] if item.expressions else [kind(expressions=nodes)]
    sets: list[tuple[int, ...]] = [()]
    for node in nodes:
        sets = [tuple(dict.fromkeys((*before, *more))) for before in sets for more in subsets(node)]
    return keys, sets


def _with_sets(grouping: Grouping, keys: list[exp.Expr], sets: list[tuple[int, ...]]) -> Grouping:
    """Each row once for each grouping set, with nulls for the omitted keys, as in Spark."""
    names, columns = grouping.t.names, [name for _, name in grouping.keys]
    structs = []
    for index, grouping_set in enumerate(sets):
        omitted = sum(1 << (len(keys) - 1 - position) for position in range(len(keys)) if position not in grouping_set)
        fields = [f"'set', {index}", f"'id', CAST({omitted} AS BIGINT)"]
        for position, column in enumerate(columns):
            value = quoted(column) if position in grouping_set else f"IF(false, {quoted(column)}, NULL)"
            fields.append(f"'key{position}', {value}")
        structs.append(f"named_struct({', '.join(fields)})")
    each = names.fresh("grouping_set")
    op = Projection(grouping.op, (*pass_through(grouping.op.columns), (each, f"explode(array({', '.join(structs)}))")))
    field_names = ["set", "id", *(f"key{position}" for position in range(len(columns)))]
    nodes = [exp.Dot(this=ref(each), expression=exp.to_identifier(item, quoted=True)) for item in field_names]
    grouping.op, (number, bits, *key_columns) = with_columns(op, nodes, names, "group")
    grouping.keys = list(zip((item.unnest() for item in keys), key_columns, strict=True))
    grouping.keys += [(ref(number), number), (ref(bits), bits)]
    grouping.sets = (bits, {to_sql(item): len(keys) - 1 - position for position, item in enumerate(keys)})
    return grouping
