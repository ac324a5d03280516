"""FROM: tables, subqueries, windows, joins and LATERAL VIEW."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, cast

from sqlglot import exp

from headrace.sql.dialect.lengths import spark_length
from headrace.views.algebra.names import pass_through, quoted
from headrace.views.algebra.operators import Aggregate, AggregateCall, Join, Operator, Projection
from headrace.views.algebra.vocabulary import GENERATORS
from headrace.views.compile.joins import conditions_of, inner_join, match_join, no_equality
from headrace.views.compile.parsing import function_of, ref, string_value, to_sql
from headrace.views.compile.pushdown import with_columns
from headrace.views.compile.scope import ColumnScope, Env, Relation, VisibleColumn, refs
from headrace.views.compile.translation import Translation

_REFUSED = {
    "sample": ("TABLESAMPLE: it gives other rows each time", "filter by a hash of the key: pmod(hash(id), 10) = 0"),
    "pivots": ("PIVOT and UNPIVOT", "write sum(x) FILTER (WHERE y = …), or UNION ALL of one SELECT for each column"),
    "version": ("time travel: a view is of the tables as they are", "leave it out"),
    "when": ("time travel: a view is of the tables as they are", "leave it out"),
}


@dataclass
class Sources:
    """The inputs of a SELECT that are joined so far, and what has to be true of their combined rows."""

    columns: tuple[VisibleColumn, ...]
    inputs: list[Operator]
    conditions: list[exp.Expr] = field(default_factory=list)

    def joined(self, t: Translation) -> Operator:
        """One operator for all of it."""
        op = inner_join(self.inputs, self.conditions, t.names)
        self.inputs, self.conditions = [op], []
        return op


def sources(t: Translation, select: exp.Select, env: Env, outer: ColumnScope | None) -> Sources:
    """The inputs of a SELECT."""
    clause = select.args.get("from_")
    if clause is None:
        raise env.refuse(select, "a SELECT without FROM: it never changes", "select from a table")
    found = _from(t, clause.this, env, outer)
    for join in select.args.get("joins") or ():
        _join(t, found, join, env, outer)
    for lateral in select.args.get("laterals") or ():
        _lateral_view(t, found, lateral, env, outer)
    return found


def _from(t: Translation, node: exp.Expr, env: Env, outer: ColumnScope | None) -> Sources:
    if isinstance(node, exp.Subquery | exp.Paren) and isinstance(node.this, exp.Table):
        found = _from(t, node.this, env, outer)
    else:
        relation = _relation(t, node, env)
        found = Sources(relation.columns, [relation.op])
    for join in node.args.get("joins") or ():
        _join(t, found, join, env, outer)
    return found


def _relation(t: Translation, node: exp.Expr, env: Env) -> Relation:
    """One input, under its name."""
    for key, (message, hint) in _REFUSED.items():
        if node.args.get(key):
            raise env.refuse(node, message, hint)
    if isinstance(node, exp.Subquery):
        found = t.relation(node.this, env.with_commons(node))
    elif isinstance(node, exp.Table) and isinstance(node.this, exp.Anonymous):
        found = _table_function(t, node.this, env)
    elif isinstance(node, exp.Table) and not node.db and isinstance(node.this, exp.Identifier):
        found = t.named(node, node.name, env)
    else:
        what = {"values": "VALUES", "lateral": "LATERAL", "unnest": "UNNEST"}.get(node.key, to_sql(node))
        raise env.refuse(node, f"{what} in FROM", "read tables, views and subqueries of them; LATERAL VIEW explode(…)")
    alias = node.args.get("alias")
    if alias is None:
        return found
    names = tuple(column.name for column in alias.columns)
    if names and len(names) != len(found.columns):
        raise env.refuse(node, f"{len(names)} names for {len(found.columns)} columns", "give each column one name")
    return found.called(alias.name or "", names)


def _table_function(t: Translation, call: exp.Anonymous, env: Env) -> Relation:
    """TUMBLE, HOP and TTL of a table, a view, or one another."""
    name, arguments = function_of(call), call.expressions
    makers: dict[str, tuple[int, Callable[[], Relation]]] = {
        "tumble": (3, lambda: _windowed(t, call, env)),
        "hop": (4, lambda: _windowed(t, call, env)),
        "ttl": (3, lambda: _fresh_rows(t, call, env)),
    }
    if name not in makers:
        raise env.refuse(call, f"{name}() in FROM", "TUMBLE(table, time, '5 MINUTES'), HOP and TTL can stand there")
    count, make = makers[name]
    if len(arguments) != count:
        examples = {"hop": "HOP(table, time, '1 MINUTE', '5 MINUTES')"}
        example = examples.get(name, f"{name.upper()}(table, time, '5 MINUTES')")
        raise env.refuse(call, f"{name.upper()} takes {count} arguments, and there are {len(arguments)}", example)
    return make()


def _argument(t: Translation, call: exp.Anonymous, env: Env) -> tuple[Relation, exp.Expr]:
    """The rows that a table function is about, and their time."""
    source, time, *_ = call.expressions
    if isinstance(source, exp.Anonymous):
        relation = _table_function(t, source, env)
    elif isinstance(source, exp.Column) and len(source.parts) == 1:
        relation = t.named(source, source.name, env)
    else:
        raise env.refuse(source, f"{to_sql(source)} as the table of {call.name.upper()}", "name a table, view or CTE")
    return relation, t.resolved(time, ColumnScope(relation.columns), env)


def _length(node: exp.Expr, env: Env) -> str:
    """A length of time as a text in quotes."""
    length = spark_length(to_sql(node)) if isinstance(node, exp.Interval) else string_value(node)
    if not length:
        raise env.refuse(node, f"{to_sql(node)} is no length of time", "write '5 MINUTES'")
    return f"'{length}'"


def _windowed(t: Translation, call: exp.Anonymous, env: Env) -> Relation:
    """Each row once for each window that its time is in; rows without a time are in none."""
    relation, time = _argument(t, call, env)
    # HOP has the slide before the size, Spark's window the other way round
    lengths = ", ".join(reversed([_length(one, env) for one in call.expressions[2:]]))
    window = t.names.fresh("window")
    rows = Projection(relation.op, (*pass_through(relation.op.columns), (window, f"window({to_sql(time)}, {lengths})")))
    ends = [(t.names.fresh(f"window_{end}"), f"{quoted(window)}.`{end}`") for end in ("start", "end")]
    op = Projection(rows, (*pass_through(relation.op.columns), *ends))
    qualifier = relation.columns[0].qualifier
    seen = tuple(
        VisibleColumn(qualifier, f"window_{end}", name) for end, (name, _) in zip(("start", "end"), ends, strict=True)
    )
    return Relation(op, (*relation.columns, *seen))


def _fresh_rows(t: Translation, call: exp.Anonymous, env: Env) -> Relation:
    """The rows that are at most so much older than the newest one that is there now."""
    relation, time = _argument(t, call, env)
    again, its_time = _argument(t, call, env)
    newest = t.names.fresh("newest")
    top = Aggregate(again.op, (), (AggregateCall(newest, f"max({to_sql(its_time)})", "max"),))
    condition = f"{to_sql(time)} >= {quoted(newest)} - INTERVAL {_length(call.expressions[2], env)}"
    return Relation(Join((relation.op, top), (), condition), relation.columns)


def _join(t: Translation, left: Sources, join: exp.Join, env: Env, outer: ColumnScope | None) -> None:
    """One more input."""
    right = _from(t, join.this, env, outer)
    kind = _kind(join, env)
    conditions, columns = _condition(t, left, right, join, env, outer)
    if kind is None:
        left.inputs += right.inputs
        left.conditions += [*right.conditions, *conditions]
        left.columns = columns
        return
    op = match_join(kind, left.joined(t), right.joined(t), conditions, t.names)
    if op is None:
        raise no_equality(env, join, f"{kind.upper()} JOIN")
    merged: Operator = op
    if kind in ("semi", "anti"):
        columns = left.columns
    elif kind == "full" and _shared(left, right, join):
        merged, columns = _merge_using(t, op, columns, left, right, join)
    left.inputs, left.columns = [merged], columns


def _kind(join: exp.Join, env: Env) -> Literal["left", "right", "full", "semi", "anti"] | None:
    if join.args.get("method") not in (None, "", "NATURAL"):
        raise env.refuse(join, f"{join.args['method']} JOIN", "join on equal columns")
    if join.kind in ("SEMI", "ANTI"):
        return cast(Literal["semi", "anti"], join.kind.lower())
    return cast(Literal["left", "right", "full"], join.side.lower()) if join.side else None


def _shared(left: Sources, right: Sources, join: exp.Join) -> list[str]:
    """The columns of USING or NATURAL."""
    if join.args.get("using"):
        return [one.name for one in join.args["using"]]
    if join.args.get("method") != "NATURAL":
        return []
    others = {one.name.lower() for one in right.columns if one.listed}
    return [one.name for one in left.columns if one.listed and one.name.lower() in others]


def _condition(
    t: Translation, left: Sources, right: Sources, join: exp.Join, env: Env, outer: ColumnScope | None
) -> tuple[list[exp.Expr], tuple[VisibleColumn, ...]]:
    """What a match is, and the columns of both sides; those of USING come first, and once."""
    shared = _shared(left, right, join)
    both = (*left.columns, *right.columns)
    if shared:
        pairs = [(_using_column(left, name, env), _using_column(right, name, env)) for name in shared]
        keys = tuple(VisibleColumn("", one.name, (r if join.side == "RIGHT" else one).ref) for one, r in pairs)
        hidden = {one.ref for pair in pairs for one in pair}
        rest = tuple(VisibleColumn(o.qualifier, o.name, o.ref, o.listed and o.ref not in hidden) for o in both)
        return [exp.EQ(this=ref(one.ref), expression=ref(r.ref)) for one, r in pairs], (*keys, *rest)
    scope = ColumnScope(both, outer)
    found = [t.resolved(one, scope, env) for one in conditions_of(join.args.get("on"))]
    for one in found:
        if refs(one) - {column.ref for column in both}:
            raise env.refuse(join, "a subquery, or a column of the query around it, in ON", "move it to WHERE")
    return found, both


def _using_column(side: Sources, name: str, env: Env) -> VisibleColumn:
    column = exp.column(name)
    found = ColumnScope(side.columns).resolve(column, env)
    if found is None:
        raise ColumnScope(side.columns).unknown(column, env)
    return next(one for one in side.columns if one.ref == found.name)


def _merge_using(
    t: Translation, op: Operator, columns: tuple[VisibleColumn, ...], left: Sources, right: Sources, join: exp.Join
) -> tuple[Operator, tuple[VisibleColumn, ...]]:
    """FULL JOIN USING: the column of whichever side there is."""
    shared = _shared(left, right, join)
    names = [name.lower() for name in shared]
    others = {one.name.lower(): one.ref for one in right.columns if one.listed and one.name.lower() in names}
    either = [
        exp.Anonymous(this="coalesce", expressions=[ref(one.ref), ref(others[one.name.lower()])])
        for one in columns[: len(shared)]
    ]
    op, made = with_columns(op, either, t.names, "either")
    keys = tuple(VisibleColumn("", one.name, name) for one, name in zip(columns[: len(shared)], made, strict=True))
    return op, (*keys, *columns[len(shared) :])


def _lateral_view(t: Translation, found: Sources, lateral: exp.Lateral, env: Env, outer: ColumnScope | None) -> None:
    call = lateral.this
    name = function_of(call)
    if name not in GENERATORS:
        raise env.refuse(lateral, f"LATERAL {to_sql(call)}", "LATERAL VIEW explode(…) or posexplode(…) can be kept")
    if lateral.args.get("outer") and not name.endswith("_outer"):
        call = exp.Anonymous(this=f"{name}_outer", expressions=call.expressions)
    alias = lateral.args.get("alias")
    names = [column.name for column in alias.columns] if alias is not None else []
    resolved = t.resolved(call, ColumnScope(found.columns, outer), env)
    op, made = explode(t, found.joined(t), cast(exp.Anonymous, resolved), names, env, lateral)
    qualifier = alias.name.lower() if alias is not None else ""
    found.inputs = [op]
    found.columns = (*found.columns, *(VisibleColumn(qualifier, one, column) for one, column in made))


def explode(
    t: Translation, op: Operator, call: exp.Anonymous, names: list[str], env: Env, place: exp.Expr
) -> tuple[Operator, list[tuple[str, str]]]:
    """A row for each element, and the names of the new columns; two names for explode() are those of a map."""
    function, argument = function_of(call), to_sql(call.expressions[0])
    op = t.beside(op, [call])
    outer = "_outer" if function.endswith("_outer") else ""
    fields: list[str] = []
    if function.startswith("pos"):
        argument, fields = f"transform({argument}, (x, i) -> named_struct('pos', i, 'col', x))", ["pos", "col"]
    elif len(names) == 2:
        argument, fields = f"map_entries({argument})", ["key", "value"]
    if len(names) > (len(fields) or 1):
        raise env.refuse(place, f"{len(names)} names for the columns of {function}()", "give as many as there are")
    element = t.names.fresh("element")
    op = Projection(op, (*pass_through(op.columns), (element, f"explode{outer}({argument})")))
    if not fields:
        return op, [(names[0] if names else "col", element)]
    op, made = with_columns(
        op, [exp.Dot(this=ref(element), expression=exp.to_identifier(one, quoted=True)) for one in fields], t.names
    )
    return op, list(zip(names or fields, made, strict=True))
