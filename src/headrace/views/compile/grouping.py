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
"""A column of a SELECT: its name, and the resolved expression."""


def inner_call(node: exp.Expr) -> exp.Expr:
    """The call inside of FILTER (…), WITHIN GROUP (…) and IGNORE NULLS."""
    while isinstance(node, WRAPPERS):
        node = node.this
    return node


def is_window_function(node: exp.Expr) -> bool:
    """Whether a call is the function of OVER (…)."""
    parent = node.parent
    while isinstance(parent, WRAPPERS):
        node, parent = parent, parent.parent
    return isinstance(parent, exp.Window) and node.arg_key == "this"


def has_aggregate(node: exp.Expr) -> bool:
    """Whether an expression needs groups."""
    return any(is_aggregate(part) and not is_window_function(part) for part in node.walk())


@dataclass
class Grouping:
    """The groups of a SELECT in the making: keys and calls come as its expressions ask for them."""

    t: Translation
    op: Operator
    env: Env
    keys: list[tuple[exp.Expr, str]] = field(default_factory=list)
    calls: dict[str, AggregateCall] = field(default_factory=dict)
    sets: tuple[str, dict[str, int]] | None = None
    """With ROLLUP and the like: the column that says which keys are left out, and the bit of each key."""

    def key(self, node: exp.Expr) -> None:
        """Group by an expression too."""
        node = node.unnest()
        self.op, (name,) = with_columns(self.t.beside(self.op, [node]), [node], self.t.names, _base(node))
        self.keys.append((node, name))

    def rewritten(self, node: exp.Expr) -> exp.Expr:
        """An expression of the rows as one of the groups."""
        return node.copy().transform(self._part)

    def done(self) -> Aggregate:
        """The groups."""
        return Aggregate(self.op, tuple(dict.fromkeys(name for _, name in self.keys)), tuple(self.calls.values()))

    def _part(self, part: exp.Expr) -> exp.Expr:
        for expression, name in self.keys:
            if part == expression:
                return ref(name)
        if isinstance(part, Ref):
            return self._ungrouped(part)
        call = inner_call(part)
        if is_aggregate(call) and not is_window_function(part):
            return ref(self._call(part, call))
        if function_of(part) in ("grouping", "grouping_id"):
            return self._left_out(part)
        return part

    def _ungrouped(self, node: Ref) -> exp.Expr:
        """A column that is the same in all rows of a group, because a key of its table is grouped by."""
        attached = self.t.attached.get(node.name)
        if attached is not None and node.name not in self.op.columns:
            pairs = tuple((self.rewritten(outside), column) for outside, column in attached.pairs)
            self.t.attached[node.name] = replace(attached, pairs=pairs)
            return node
        grouped = {name for _, name in self.keys}
        if node.name not in facts(self.op, self.t.tables).closure(grouped):
            base = node.name.rpartition("_")[0]
            hint = f"add it to GROUP BY, or say which of its values: max({base}), min({base}), max_by({base}, …)"
            raise self.env.refuse(node, f"'{base}' is neither grouped by nor in an aggregate", hint)
        self.keys.append((node, node.name))
        return ref(node.name)

    def _call(self, node: exp.Expr, call: exp.Expr) -> str:
        inside = [part for one in call.expressions for part in one.walk()]
        if any(is_aggregate(part) or isinstance(part, exp.Window) or function_of(part) == "window" for part in inside):
            message = f"{function_of(call)}() of an aggregate or a window"
            raise self.env.refuse(node, message, "make the inner one in a subquery")
        self.op = self.t.beside(self.op, [node])
        made = deterministic(node, self.env)
        sql = to_sql(made)
        if sql not in self.calls:
            self.calls[sql] = _aggregate_call(self.t.names.fresh(function_of(call)), sql, made, call)
        return self.calls[sql].name

    def _left_out(self, node: exp.Expr) -> exp.Expr:
        """grouping(x): 1 where x is left out; grouping_id(): all of them as bits."""
        if self.sets is None:
            raise self.env.refuse(node, f"{function_of(node)}() without ROLLUP, CUBE or GROUPING SETS", "leave it out")
        bits, places = self.sets
        if function_of(node) == "grouping_id" and not node.expressions:
            return ref(bits)
        if function_of(node) == "grouping_id" or to_sql(node.expressions[0]) not in places:
            raise self.env.refuse(node, f"{to_sql(node)}: only a key of GROUP BY can be left out", "name one key")
        place = exp.Literal.number(places[to_sql(node.expressions[0])])
        bit = exp.BitwiseAnd(
            this=exp.Anonymous(this="shiftright", expressions=[ref(bits), place]), expression=exp.Literal.number(1)
        )
        return exp.Anonymous(this="tinyint", expressions=[bit])


def _base(node: exp.Expr) -> str:
    return function_of(node) or "key"


def _aggregate_call(name: str, sql: str, made: exp.Expr, call: exp.Expr) -> AggregateCall:
    """A call with its parts where they matter."""
    function = function_of(call) if function_of(call) != "mean" else "avg"
    core = inner_call(made)
    arguments = core.expressions
    distinct = bool(arguments) and isinstance(arguments[0], exp.Distinct)
    values = arguments[0].expressions if distinct else arguments
    one = function in _ONE_ARGUMENT and len(values) == 1 and not isinstance(values[0], exp.Star)
    where = next((part.expression.this for part in made.walk() if isinstance(part, exp.Filter)), None)
    return AggregateCall(
        name, sql, function, to_sql(values[0]) if one else None, distinct, None if where is None else to_sql(where)
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
    """The groups that a SELECT asks for; of all rows together when it does not say."""
    clause = select.args.get("group")
    grouping = Grouping(t, op, env)
    if clause is None:
        return grouping
    if clause.args.get("all"):
        for _, one in items:
            if not has_aggregate(one):
                grouping.key(one)
        return grouping
    keys, sets = _sets(clause, lambda node: _key(t, node, items, scope, env, aliases))
    for one in keys:
        grouping.key(one)
    return grouping if len(sets) == 1 else _with_sets(grouping, keys, sets)


def _key(
    t: Translation, node: exp.Expr, items: Sequence[Item], scope: ColumnScope, env: Env, aliases: Aliases
) -> exp.Expr:
    """What GROUP BY names: an expression, a column of the SELECT by its number or by its name."""
    if isinstance(node, exp.Literal) and not node.is_string:
        place = int(node.name) if node.name.isdigit() else 0
        if not 1 <= place <= len(items):
            raise env.refuse(node, f"GROUP BY {node.name}: there are {len(items)} columns", "give its number or name")
        found = items[place - 1][1]
    else:
        found = t.resolved(node, scope, env, aliases)
    if has_aggregate(found) or found.find(exp.Window):
        raise env.refuse(node, "GROUP BY of an aggregate", "make it in a subquery, and group by its column")
    return found


def _sets(clause: exp.Group, key: Callable[[exp.Expr], exp.Expr]) -> tuple[list[exp.Expr], list[tuple[int, ...]]]:
    """All keys, and which of them each set of groups has."""
    keys: list[exp.Expr] = []

    def place(node: exp.Expr) -> int:
        found = key(node)
        if found not in keys:
            keys.append(found)
        return keys.index(found)

    def several(node: exp.Expr) -> tuple[int, ...]:
        inside = node.expressions if isinstance(node, exp.Tuple) else [node.unnest()]
        return tuple(place(one) for one in inside)

    def subsets(node: exp.Expr) -> list[tuple[int, ...]]:
        if isinstance(node, exp.Rollup | exp.Cube):
            groups = [several(one) for one in node.expressions]
            if isinstance(node, exp.Rollup):
                chosen = [groups[:end] for end in range(len(groups), -1, -1)]
            else:
                chosen = [list(c) for size in range(len(groups), -1, -1) for c in combinations(groups, size)]
            return [tuple(dict.fromkeys(one for group in c for one in group)) for c in chosen]
        if isinstance(node, exp.GroupingSets):
            return [one for inside in node.expressions for one in subsets(inside)]
        return [several(node)]

    nodes = list(clause.expressions)
    for name, kind in (("rollup", exp.Rollup), ("cube", exp.Cube), ("grouping_sets", exp.GroupingSets)):
        for one in clause.args.get(name) or ():
            # GROUP BY a, b WITH ROLLUP
            nodes = [one] if one.expressions else [kind(expressions=nodes)]
    sets: list[tuple[int, ...]] = [()]
    for node in nodes:
        sets = [tuple(dict.fromkeys((*before, *more))) for before in sets for more in subsets(node)]
    return keys, sets


def _with_sets(grouping: Grouping, keys: list[exp.Expr], sets: list[tuple[int, ...]]) -> Grouping:
    """Each row once for each set, with nulls for the keys that the set leaves out, as Spark does it."""
    names, columns = grouping.t.names, [name for _, name in grouping.keys]
    structs = []
    for index, chosen in enumerate(sets):
        left_out = sum(1 << (len(keys) - 1 - place) for place in range(len(keys)) if place not in chosen)
        fields = [f"'set', {index}", f"'id', CAST({left_out} AS BIGINT)"]
        for place, column in enumerate(columns):
            value = quoted(column) if place in chosen else f"IF(false, {quoted(column)}, NULL)"
            fields.append(f"'key{place}', {value}")
        structs.append(f"named_struct({', '.join(fields)})")
    each = names.fresh("grouping_set")
    op = Projection(grouping.op, (*pass_through(grouping.op.columns), (each, f"explode(array({', '.join(structs)}))")))
    wanted = ["set", "id", *(f"key{place}" for place in range(len(columns)))]
    nodes = [exp.Dot(this=ref(each), expression=exp.to_identifier(one, quoted=True)) for one in wanted]
    grouping.op, (number, bits, *made) = with_columns(op, nodes, names, "group")
    grouping.keys = list(zip((one.unnest() for one in keys), made, strict=True))
    grouping.keys += [(ref(number), number), (ref(bits), bits)]
    grouping.sets = (bits, {to_sql(one): len(keys) - 1 - place for place, one in enumerate(keys)})
    return grouping
