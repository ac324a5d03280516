"""Views in a few words, without the numbers in the names of their columns."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.views.algebra.operators import (
    Aggregate,
    Join,
    Match,
    Operator,
    Projection,
    Ranked,
    Scan,
    Selection,
    UnionAll,
)


def blocks(name: str) -> list[list[str]]:
    """The cases of a file beside this one: lines between empty lines."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return [block.splitlines() for block in text.strip().split("\n\n")]


def outline(op: Operator) -> str:
    match op:
        case Scan(table, fields):
            return f"{table}({', '.join(source for _, source in fields)})"
        case Projection(below, expressions):
            return f"Project[{', '.join(_bare(source) for _, source in expressions)}]({outline(below)})"
        case Selection(below, condition):
            return f"Filter[{_bare(condition)}]({outline(below)})"
        case UnionAll(inputs):
            return f"UnionAll({', '.join(map(outline, inputs))})"
        case Join(inputs):
            return f"Join[{_compared(op)}]({', '.join(map(outline, inputs))})"
        case Match(kind, left, right):
            return f"{kind}[{_compared(op)}]({outline(left)}, {outline(right)})"
        case Aggregate(below, keys, calls):
            called = ", ".join(_bare(one.sql) for one in calls)
            return f"Aggregate[{', '.join(map(_name, keys))}: {called}]({outline(below)})"
        case Ranked(below, _, expressions):
            return f"Ranked[{', '.join(_bare(source) for _, source in expressions)}]({outline(below)})"


def _compared(op: Join | Match) -> str:
    equal = [f"{_name(one.left)} {'<=>' if one.nulls else '='} {_name(one.right)}" for one in op.equal]
    return ", ".join(equal + ([_bare(op.condition)] if op.condition else []))


def _bare(text: str) -> str:
    return re.sub(r"_\d+(?=`)", "", text).replace("`", "")


def _name(column: str) -> str:
    return re.sub(r"_\d+$", "", column)
