"""Window functions, ORDER BY with LIMIT, and how rows that are alike to an ORDER BY get an order of their own."""

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
"""Stands in an ORDER BY for all columns that are in use: which these are is known at the end."""
_STABLE = ("max_by", "min_by", "mode", "any_value")
_COLLECTED = ("collect_list", "array_agg", "collect_set")


@dataclass
class Ranking:
    """The window functions of a SELECT in the making."""

    t: Translation
    op: Operator
    env: Env
    found: dict[tuple[str, ...], dict[str, str]] = field(default_factory=dict)
    """By partition: the name of each function's text."""

    def rewritten(self, node: exp.Expr) -> exp.Expr:
        """An expression with the columns that its window functions will be."""
        return node.copy().transform(lambda part: self._window(part) if isinstance(part, exp.Window) else part)

    def done(self) -> Operator:
        """The rows with all window functions beside them."""
        op = self.op
        for partition, functions in self.found.items():
            op = Ranked(op, partition, tuple((name, written) for written, name in functions.items()))
        return op

    def _window(self, node: exp.Window) -> exp.Expr:
        if any(isinstance(part, exp.Window) for part in node.walk() if part is not node):
            raise self.env.refuse(node, "a window function inside of another", "make the inner one in a subquery")
        self.op = self.t.beside(self.op, [node])
        partition = [one.unnest() for one in node.args.get("partition_by") or ()]
        self.op, columns = with_columns(self.op, partition, self.t.names, "partition")
        written = self._text(node, columns)
        names = self.found.setdefault(tuple(dict.fromkeys(columns)), {})
        names.setdefault(written, self.t.names.fresh(function_of(inner_call(node.this)) or "window"))
        return ref(names[written])

    def _text(self, node: exp.Window, partition: list[str]) -> str:
        order = [to_sql(one) for one in node.args["order"].expressions] if node.args.get("order") else []
        ties = self._ties(node, bool(order))
        over = []
        if partition:
            over.append(f"PARTITION BY {', '.join(quoted(one) for one in partition)}")
        if order or ties:
            over.append(f"ORDER BY {', '.join([*order, *([quoted(TIE_BREAK)] if ties else [])])}")
        spec = node.args.get("spec")
        if spec is not None:
            over.append(to_sql(spec))
        name = function_of(inner_call(node.this))
        function = to_sql(deterministic(node.this, self.env) if name in _STABLE else node.this)
        written = f"{function} OVER ({' '.join(over)})"
        unordered = name == "collect_set" or (name in _COLLECTED and not ties)
        return f"sort_array({written})" if unordered else written

    def _ties(self, node: exp.Window, ordered: bool) -> bool:
        """Whether the order of rows that are alike matters to the function.

        Only where it does may they get one: to RANGE frames, and to rank(), such rows are one.
        """
        name, spec = function_of(inner_call(node.this)), node.args.get("spec")
        if name in PEERS or name in NUMBERED:
            return name in NUMBERED
        by_rows = ordered and spec is not None and str(spec.args.get("kind")).upper() == "ROWS"
        if name not in ORDER_DEPENDENT or name in _STABLE or name == "collect_set" or by_rows:
            return by_rows
        if ordered and _at_an_end(name, spec):
            return True
        if not ordered and name in _COLLECTED:
            return False
        raise self.env.refuse(
            node,
            f"{name}() OVER: rows that are alike to ORDER BY may come in any order",
            "add ORDER BY and ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
        )


def _at_an_end(name: str, spec: exp.Expr | None) -> bool:
    """Whether the first or the last row of a frame is an end of the whole partition, ties or not."""
    start = "UNBOUNDED" if spec is None else str(spec.args.get("start")).upper()
    end = "" if spec is None else str(spec.args.get("end")).upper()
    if name in ("first", "first_value"):
        return start == "UNBOUNDED"
    return name in ("last", "last_value") and end == "UNBOUNDED"


def apply_limit(t: Translation, op: Operator, order: Sequence[exp.Expr], query: exp.Expr, env: Env) -> Operator:
    """The rows that LIMIT and OFFSET leave. Without ORDER BY, and for rows that are alike to it, the least ones."""
    limit, offset = (_number(query.args.get(name), env) for name in ("limit", "offset"))
    if limit is None and not offset:
        return op
    number = t.names.fresh("number")
    by = ", ".join([*(to_sql(one) for one in order), quoted(TIE_BREAK)])
    ranked = Ranked(op, (), ((number, f"row_number() OVER (ORDER BY {by})"),))
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
        raise env.refuse(clause, f"{to_sql(clause).strip()}: not a number that is written out", "write LIMIT 10")
    return int(value.name)
