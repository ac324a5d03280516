"""A canonical spelling for equivalent expressions: letter case, layout, brackets, comments."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sqlglot import exp

from headrace.sql.query import DIALECT

_INTERVAL = re.compile(r"(\d+)\s*([a-z]+?)s?")


def canonical(node: exp.Expr) -> str:
    """The canonical text of an expression or query."""
    return _plain(node.copy().transform(_normalise)).sql(dialect=DIALECT, comments=False, normalize_functions="lower")


def conjuncts(condition: exp.Expr) -> Iterator[exp.Expr]:
    """The parts of a condition joined by AND."""
    if isinstance(condition, exp.And):
        yield from conjuncts(condition.left)
        yield from conjuncts(condition.right)
    elif isinstance(condition, exp.Paren):
        yield from conjuncts(condition.this)
    else:
        yield condition


def _plain(node: exp.Expr) -> exp.Expr:
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def _normalise(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Identifier):
        return exp.to_identifier(node.name.lower(), quoted=not re.fullmatch(r"[A-Za-z_]\w*", node.name))
    if isinstance(node, exp.Paren) and isinstance(node.parent, exp.Where | exp.Having | exp.Alias):
        inside: exp.Expr = node.this
        return inside
    if isinstance(node, exp.Anonymous):
        node.set("this", node.name.lower())
    if isinstance(node, exp.Literal) and node.is_string and _is_length(node):
        return exp.Literal.string(_length(node.name))
    return node


def _is_length(node: exp.Expr) -> bool:
    """Whether a string literal is the size of a window: '10 seconds'."""
    parent = node.parent
    return isinstance(parent, exp.Anonymous) and parent.name.lower() in ("window", "session_window")


def _length(text: str) -> str:
    match = _INTERVAL.fullmatch(text.strip().lower())
    return f"{int(match[1])} {match[2]}" if match else text.lower()
