"""Replaces the current time in a query by a fixed one, so that a repeated run gives the same result."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlglot import exp

from headrace.sql.query import DIALECT, parse

_CLOCKS = exp.CurrentTimestamp | exp.CurrentDate | exp.Localtimestamp


def with_fixed_time(sql: str, moment: datetime) -> str:
    """The query with `moment` instead of now; the unchanged text if it does not use the current time."""
    tree = parse(sql).tree
    if not any(_is_clock(node) for node in tree.walk()):
        return sql
    text = moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")

    def replaced(node: exp.Expr) -> exp.Expr:
        if not _is_clock(node):
            return node
        if isinstance(node, exp.CurrentDate):
            return exp.cast(exp.Literal.string(text[:10]), "date")
        if isinstance(node, exp.Localtimestamp):
            return exp.cast(exp.Literal.string(text), "timestamp_ntz", dialect=DIALECT)
        return exp.cast(exp.Literal.string(f"{text}Z"), "timestamp", dialect=DIALECT)

    return tree.transform(replaced).sql(DIALECT)


def _is_clock(node: exp.Expr) -> bool:
    return isinstance(node, _CLOCKS) or (isinstance(node, exp.Anonymous) and node.name.lower() == "now")
