"""A query at a moment: what asks for the time gets this one, also when the query runs again."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlglot import exp

from headrace.sql.query import DIALECT, parse

_CLOCKS = exp.CurrentTimestamp | exp.CurrentDate | exp.Localtimestamp


def with_fixed_time(sql: str, moment: datetime) -> str:
    """The query with this moment in place of now; the text as it is when it does not ask for the time."""
    tree = parse(sql).tree
    if not any(_is_clock(node) for node in tree.walk()):
        return sql
    text = moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")

    def told(node: exp.Expr) -> exp.Expr:
        if not _is_clock(node):
            return node
        if isinstance(node, exp.CurrentDate):
            return exp.cast(exp.Literal.string(text[:10]), "date")
        if isinstance(node, exp.Localtimestamp):
            return exp.cast(exp.Literal.string(text), "timestamp_ntz", dialect=DIALECT)
        return exp.cast(exp.Literal.string(f"{text}Z"), "timestamp", dialect=DIALECT)

    return tree.transform(told).sql(DIALECT)


def _is_clock(node: exp.Expr) -> bool:
    return isinstance(node, _CLOCKS) or (isinstance(node, exp.Anonymous) and node.name.lower() == "now")
