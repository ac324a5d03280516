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
    "sample": (
        "TABLESAMPLE: it returns different rows each time",
        "filter by a hash of the key: pmod(hash(id), 10) = 0",
    ),
    "pivots": ("PIVOT and UNPIVOT", "write sum(x) FILTER (WHERE y = …), or UNION ALL of one SELECT for each column"),
    "version": ("time travel: a view reads the current rows of its tables", "remove it"),
    "when": ("time travel: a view reads the current rows of its tables", "remove it"),
}


@dataclass
class Sources:
    """The inputs of a SELECT joined so far, and the conditions on their combined rows."""

    columns: tuple[VisibleColumn, ...]
    inputs: list[Operator]
    conditions: list[exp.Expr] = field(default_factory=list)

    def join(self, t: Translation) -> Operator:
        op = inner_join(self.inputs, self.conditions, t.names)
        self.inputs, self.conditions = [op], []
        return op


def sources(t: Translation, select: exp.Select, env: Env, outer: ColumnScope | None) -> Sources:
    clause = select.args.get("from_")
    if clause is None:
        raise env.refuse(select, "a SELECT without FROM: it never changes", "select from a table")
    inputs = _from(t, clause.this, env, outer)
    for join in select.args.get("joins") or ():
        _join(t, inputs, join, env, outer)
    for lateral in select.args.get("laterals") or ():
        _lateral_view(t, inputs, lateral, env, outer)
    return inputs


def _from(t: Translation, node: exp.Expr, env: Env, outer: ColumnScope | None) -> Sources:
    if isinstance(node, exp.Subquery | exp.Paren) and isinstance(node.this, exp.Table):
        inputs = _from(t, node.this, env, outer)
    else:
        relation = _relation(t, node, env)
        inputs = Sources(relation.columns, [relation.op])
    for join in node.args.get("joins") or ():
        _join(t, inputs, join, env, outer)
    return inputs


def _relation(t: Translation, node: exp.Expr, env: Env) -> Relation:
    """One input under its alias."""
    for key, (message, hint) in _REFUSED.items():
        if node.args.get(key):
            raise env.refuse(node, message, hint)
    if isinstance(node, exp.Subquery):
        relation = t.relation(node.this, env.with_ctes(node))
    elif isinstance(node, exp.Table) and isinstance(node.this, exp.Anonymous):
        relation = _table_function(t, node.this, env)
    elif isinstance(node, exp.Table) and not node.db and isinstance(node.this, exp.Identifier):
        relation = t.table_or_view(node, node.name, env)
    else:
        source = {"values": "VALUES", "lateral": "LATERAL", "unnest": "UNNEST"}.get(node.key, to_sql(node))
        raise env.refuse(
            node, f"{source} in FROM", "read tables, views and subqueries of them; LATERAL VIEW explode(…)"
        )
    alias = node.args.get("alias")
    if alias is None:
        return relation
    names = tuple(column.name for column in alias.columns)
    if names and len(names) != len(relation.columns):
        raise env.refuse(node, f"{len(names)} names for {len(relation.columns)} columns", "give one name per column")
    return relation.aliased(alias.name or "", names)


def _table_function(t: Translation, call: exp.Anonymous, env: Env) -> Relation:
    """TUMBLE, HOP and TTL of a table, a view or each other."""
    name, arguments = function_of(call), call.expressions
    makers: dict[str, tuple[int, Callable[[], Relation]]] = {
        "tumble": (3, lambda: _windowed(t, call, env)),
        "hop": (4, lambda: _windowed(t, call, env)),
        "ttl": (3, lambda: _fresh_rows(t, call, env)),
    }
    if name not in makers:
        raise env.refuse(
            call, f"{name}() in FROM", "only TUMBLE(table, time, '5 MINUTES'), HOP and TTL are supported there"
        )
    count, make = makers[name]
    if len(arguments) != count:
        examples = {"hop": "HOP(table, time, '1 MINUTE', '5 MINUTES')"}
        example = examples.get(name, f"{name.upper()}(table, time, '5 MINUTES')")
        raise env.refuse(call, f"{name.upper()} takes {count} arguments, not {len(arguments)}", example)
    return make()


def _argument(t: Translation, call: exp.Anonymous, env: Env) -> tuple[Relation, exp.Expr]:
    """The input rows of a table function and their time."""
    source, time, *_ = call.expressions
    if isinstance(source, exp.Anonymous):
        relation = _table_function(t, source, env)
    elif isinstance(source, exp.Column) and len(source.parts) == 1:
        relation = t.table_or_view(source, source.name, env)
    else:
        raise env.refuse(source, f"{to_sql(source)} as the table of {call.name.upper()}", "name a table, view or CTE")
    return relation, t.resolve(time, ColumnScope(relation.columns), env)


def _length(node: exp.Expr, env: Env) -> str:
    """A duration as a quoted string."""
    length = spark_length(to_sql(node)) if isinstance(node, exp.Interval) else string_value(node)
    if not length:
        raise env.refuse(node, f"{to_sql(node)} is not a duration", "write '5 MINUTES'")
    return f"'{length}'"


def _windowed(t: Translation, call: exp.Anonymous, env: Env) -> Relation:
    """Each row once for each window of its time; rows without a time are dropped."""
    relation, time = _argument(t, call, env)
    # HOP takes slide, size; Spark's window takes size, slide
    lengths = ", ".join(reversed([_length(length, env) for length in call.expressions[2:]]))
    window = t.names.fresh("window")
    rows = Projection(relation.op, (*pass_through(relation.op.columns), (window, f"window({to_sql(time)}, {lengths})")))
    ends = [(t.names.fresh(f"window_{end}"), f"{quoted(window)}.`{end}`") for end in ("start", "end")]
    op = Projection(rows, (*pass_through(relation.op.columns), *ends))
    qualifier = relation.columns[0].qualifier
    window_columns = tuple(
        VisibleColumn(qualifier, f"window_{end}", name) for end, (name, _) in zip(("start", "end"), ends, strict=True)
    )
    return Relation(op, (*relation.columns, *window_columns))


def _fresh_rows(t: Translation, call: exp.Anonymous, env: Env) -> Relation:
    """TTL: the rows that are at most this much older than the newest row."""
    relation, time = _argument(t, call, env)
    again, its_time = _argument(t, call, env)
    newest = t.names.fresh("newest")
    top = Aggregate(again.op, (), (AggregateCall(newest, f"max({to_sql(its_time)})", "max"),))
    condition = f"{to_sql(time)} >= {quoted(newest)} - INTERVAL {_length(call.expressions[2], env)}"
    return Relation(Join((relation.op, top), (), condition), relation.columns)


def _join(t: Translation, left: Sources, join: exp.Join, env: Env, outer: ColumnScope | None) -> None:
    """Add a joined input."""
    right = _from(t, join.this, env, outer)
    kind = _kind(join, env)
    conditions, columns = _condition(t, left, right, join, env, outer)
    if kind is None:
        left.inputs += right.inputs
        left.conditions += [*right.conditions, *conditions]
        left.columns = columns
        return
    op = match_join(kind, left.join(t), right.join(t), conditions, t.names)
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
    if join.args.get("using"):
        return [column.name for column in join.args["using"]]
    if join.args.get("method") != "NATURAL":
        return []
    others = {column.name.lower() for column in right.columns if column.listed}
    return [column.name for column in left.columns if column.listed and column.name.lower() in others]


def _condition(
    t: Translation, left: Sources, right: Sources, join: exp.Join, env: Env, outer: ColumnScope | None
) -> tuple[list[exp.Expr], tuple[VisibleColumn, ...]]:
    """The join conditions and the columns of both sides; columns of USING come first, once."""
    shared = _shared(left, right, join)
    both = (*left.columns, *right.columns)
    if shared:
        pairs = [(_using_column(left, name, env), _using_column(right, name, env)) for name in shared]
        keys = tuple(
            VisibleColumn("", left_column.name, (right_column if join.side == "RIGHT" else left_column).ref)
            for left_column, right_column in pairs
        )
        hidden = {column.ref for pair in pairs for column in pair}
        rest = tuple(
            VisibleColumn(column.qualifier, column.name, column.ref, column.listed and column.ref not in hidden)
            for column in both
        )
        return [
            exp.EQ(this=ref(left_column.ref), expression=ref(right_column.ref)) for left_column, right_column in pairs
        ], (*keys, *rest)
    scope = ColumnScope(both, outer)
    conditions = [t.resolve(node, scope, env) for node in conditions_of(join.args.get("on"))]
    for condition in conditions:
        if refs(condition) - {column.ref for column in both}:
            raise env.refuse(join, "a subquery or a column of the outer query in ON", "move it to WHERE")
    return conditions, both


def _using_column(side: Sources, name: str, env: Env) -> VisibleColumn:
    column = exp.column(name)
    resolved = ColumnScope(side.columns).resolve(column, env)
    if resolved is None:
        raise ColumnScope(side.columns).unknown(column, env)
    return next(candidate for candidate in side.columns if candidate.ref == resolved.name)


def _merge_using(
    t: Translation, op: Operator, columns: tuple[VisibleColumn, ...], left: Sources, right: Sources, join: exp.Join
) -> tuple[Operator, tuple[VisibleColumn, ...]]:
    """FULL JOIN USING: the column of the side that has a row."""
    shared = _shared(left, right, join)
    names = [name.lower() for name in shared]
    others = {
        column.name.lower(): column.ref for column in right.columns if column.listed and column.name.lower() in names
    }
    either = [
        exp.Anonymous(this="coalesce", expressions=[ref(column.ref), ref(others[column.name.lower()])])
        for column in columns[: len(shared)]
    ]
    op, merged = with_columns(op, either, t.names, "either")
    keys = tuple(
        VisibleColumn("", column.name, name) for column, name in zip(columns[: len(shared)], merged, strict=True)
    )
    return op, (*keys, *columns[len(shared) :])


def _lateral_view(t: Translation, inputs: Sources, lateral: exp.Lateral, env: Env, outer: ColumnScope | None) -> None:
    call = lateral.this
    name = function_of(call)
    if name not in GENERATORS:
        raise env.refuse(
            lateral, f"LATERAL {to_sql(call)}", "only LATERAL VIEW explode(…) or posexplode(…) is supported"
        )
    if lateral.args.get("outer") and not name.endswith("_outer"):
        call = exp.Anonymous(this=f"{name}_outer", expressions=call.expressions)
    alias = lateral.args.get("alias")
    names = [column.name for column in alias.columns] if alias is not None else []
    resolved = t.resolve(call, ColumnScope(inputs.columns, outer), env)
    op, new_columns = explode(t, inputs.join(t), cast(exp.Anonymous, resolved), names, env, lateral)
    qualifier = alias.name.lower() if alias is not None else ""
    inputs.inputs = [op]
    inputs.columns = (
        *inputs.columns,
        *(VisibleColumn(qualifier, name, column) for name, column in new_columns),
    )


def explode(
    t: Translation, op: Operator, call: exp.Anonymous, names: list[str], env: Env, place: exp.Expr
) -> tuple[Operator, list[tuple[str, str]]]:
    """A row for each element, and the new columns as pairs (name, column); explode() with two names is of a map."""
    function, argument = function_of(call), to_sql(call.expressions[0])
    op = t.with_subquery_values(op, [call])
    outer = "_outer" if function.endswith("_outer") else ""
    fields: list[str] = []
    if function.startswith("pos"):
        argument, fields = f"transform({argument}, (x, i) -> named_struct('pos', i, 'col', x))", ["pos", "col"]
    elif len(names) == 2:
        argument, fields = f"map_entries({argument})", ["key", "value"]
    if len(names) > (len(fields) or 1):
        raise env.refuse(place, f"{len(names)} names for the columns of {function}()", "give one name per column")
    element = t.names.fresh("element")
    op = Projection(op, (*pass_through(op.columns), (element, f"explode{outer}({argument})")))
    if not fields:
        return op, [(names[0] if names else "col", element)]
    op, columns = with_columns(
        op,
        [exp.Dot(this=ref(element), expression=exp.to_identifier(field_name, quoted=True)) for field_name in fields],
        t.names,
    )
    return op, list(zip(names or fields, columns, strict=True))
