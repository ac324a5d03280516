"""Compiles window functions and ORDER BY with LIMIT; ties of ORDER BY get a defined order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from headrace.views.algebra.names import pass_through, quoted
from headrace.views.algebra.operators import Operator, Projection, Ranked, Selection
from headrace.views.algebra.vocabulary import NUMBERED, ORDER_DEPENDENT, PEERS
from headrace.views.compile.deterministic import deterministic
from headrace.views.compile.grouping import inner_call
from headrace.views.compile.parsing import function_of, ref, to_sql
from headrace.views.compile.pushdown import with_columns
from headrace.views.compile.scope import Env
from headrace.views.compile.translation import Translation

TIE_BREAK = "*"
"""A placeholder in ORDER BY for all columns in use, which are known after pruning."""
_STABLE = ("max_by", "min_by", "mode", "any_value")
_COLLECTED = ("collect_list", "array_agg", "collect_set")


@dataclass
class Ranking:
    """Collects the window functions of a SELECT."""

    t: Translation
    op: Operator
    env: Env
    functions: dict[tuple[str, ...], dict[str, str]] = field(default_factory=dict)
    """By partition: the SQL of each function and its column."""

    def rewrite(self, node: exp.Expr) -> exp.Expr:
        """Replace window functions in an expression by their columns."""
        return node.copy().transform(lambda part: self._window(part) if isinstance(part, exp.Window) else part)

    def build(self) -> Operator:
        """The rows with a column for each window function."""
        op = self.op
        for partition, columns in self.functions.items():
            op = Ranked(op, partition, tuple((name, sql) for sql, name in columns.items()))
        return op

    def _window(self, node: exp.Window) -> exp.Expr:
        if any(isinstance(part, exp.Window) for part in node.walk() if part is not node):
            raise self.env.refuse(node, "a window function inside another", "compute the inner one in a subquery")
        self.op = self.t.with_subquery_values(self.op, [node])
        partition = [expression.unnest() for expression in node.args.get("partition_by") or ()]
        self.op, columns = with_columns(self.op, partition, self.t.names, "partition")
        sql = self._window_sql(node, columns)
        names = self.functions.setdefault(tuple(dict.fromkeys(columns)), {})
        names.setdefault(sql, self.t.names.fresh(function_of(inner_call(node.this)) or "window"))
        return ref(names[sql])

    def _window_sql(self, node: exp.Window, partition: list[str]) -> str:
        order = [to_sql(item) for item in node.args["order"].expressions] if node.args.get("order") else []
        ties = self._ties(node, bool(order))
        clauses = []
        if partition:
            clauses.append(f"PARTITION BY {', '.join(quoted(item) for item in partition)}")
        if order or ties:
            clauses.append(f"ORDER BY {', '.join([*order, *([quoted(TIE_BREAK)] if ties else [])])}")
        spec = node.args.get("spec")
        if spec is not None:
            clauses.append(to_sql(spec))
        name = function_of(inner_call(node.this))
        function = to_sql(deterministic(node.this, self.env) if name in _STABLE else node.this)
        sql = f"{function} OVER ({' '.join(clauses)})"
        unordered = name == "collect_set" or (name in _COLLECTED and not ties)
        return f"sort_array({sql})" if unordered else sql

    def _ties(self, node: exp.Window, ordered: bool) -> bool:
        """Whether the result depends on the order of ties.

        Ties get an order only then: RANGE frames and rank() treat them as one row.
        """
        name, spec = function_of(inner_call(node.this)), node.args.get("spec")
        if name in PEERS or name in NUMBERED:
            return name in NUMBERED
        by_rows = ordered and spec is not None and str(spec.args.get("kind")).upper() == "ROWS"
        if name not in ORDER_DEPENDENT or name in _STABLE or name == "collect_set" or by_rows:
            return by_rows
        if ordered and _is_partition_end(name, spec):
            return True
        if not ordered and name in _COLLECTED:
            return False
        raise self.env.refuse(
            node,
            f"{name}() OVER: the order of ties of ORDER BY is undefined",
            "add ORDER BY and ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
        )


def _is_partition_end(name: str, spec: exp.Expr | None) -> bool:
    """Whether the first or last row of the frame is an end of the whole partition."""
    start = "UNBOUNDED" if spec is None else str(spec.args.get("start")).upper()
    end = "" if spec is None else str(spec.args.get("end")).upper()
    if name in ("first", "first_value"):
        return start == "UNBOUNDED"
    return name in ("last", "last_value") and end == "UNBOUNDED"


def apply_limit(t: Translation, op: Operator, order: Sequence[exp.Expr], query: exp.Expr, env: Env) -> Operator:
    """Apply LIMIT and OFFSET. Without ORDER BY, and among ties, the least rows are taken."""
    limit, offset = (_number(query.args.get(name), env) for name in ("limit", "offset"))
    if limit is None and not offset:
        return op
    number = t.names.fresh("number")
    order_by = ", ".join([*(to_sql(item) for item in order), quoted(TIE_BREAK)])
    ranked = Ranked(op, (), ((number, f"row_number() OVER (ORDER BY {order_by})"),))
    first = f"{quoted(number)} > {offset}" if offset else ""
    last = f"{quoted(number)} <= {limit + (offset or 0)}" if limit is not None else ""
    return Projection(Selection(ranked, " AND ".join(part for part in (first, last) if part)), pass_through(op.columns))


def _number(clause: exp.Expr | None, env: Env) -> int | None:
    if clause is None:
        return None
    value = clause.expression
    if isinstance(value, exp.Column | exp.Var) and value.name.upper() == "ALL":
        return None
    if not isinstance(value, exp.Literal) or not value.name.isdigit():
        raise env.refuse(clause, f"{to_sql(clause).strip()}: not a number literal", "write LIMIT 10")
    return int(value.name)
