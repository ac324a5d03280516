"""The layout of a view's state: which operators are stored, and which deltas are computed once and reused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from headrace.core.errors import ProjectError
from headrace.core.schema import ddl_type
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
    inputs_of,
)
from headrace.views.maintain.batch_query import OperatorTypes
from headrace.views.maintain.sums import Sums, as_sums

_NUMBER_SUFFIX = re.compile(r"_\d+$")
"""The suffix that makes a column name of the query unique."""


@dataclass
class Layout:
    """The stored operators, and the deltas in the order in which they are computed."""

    delta_names: dict[Operator, str] = field(default_factory=dict)
    """Operators whose delta is computed once, and the name of that relation."""
    stored: set[Operator] = field(default_factory=set)
    """Operators whose result, or whose sums, are part of the state."""
    sums: dict[Operator, Sums] = field(default_factory=dict)
    """Aggregates maintained as sums."""


def layout(root: Operator, types: OperatorTypes) -> Layout:
    """The layout for a query.

    Sums and results of groups are always stored. A join needs the old rows of its inputs, and a group the old rows of
    the touched values: tables provide theirs, and a join below a group is recomputed for the touched values. All other
    inputs are stored.
    """
    result = Layout()
    for operator in _bottom_up(root):
        _refuse_maps(operator, types)
        if isinstance(operator, Aggregate) and (sums := as_sums(operator, types)) is not None:
            result.sums[operator] = sums
        if isinstance(operator, Aggregate | Ranked):
            result.delta_names[operator] = ""
            result.stored.add(operator)
        if isinstance(operator, Join | Match | Aggregate | Ranked) and operator not in result.sums:
            core = [op for below in inputs_of(operator) for op in _core(below)]
            result.delta_names |= dict.fromkeys(core, "")
            result.stored |= {op for op in core if isinstance(operator, Join) or not isinstance(op, Join)}
    order = [op for op in dict.fromkeys(_bottom_up(root)) if op in result.delta_names]
    result.delta_names = {op: f"r{number}" for number, op in enumerate(order)}
    return result


def _bottom_up(operator: Operator) -> Iterator[Operator]:
    for below in inputs_of(operator):
        yield from _bottom_up(below)
    yield operator


def _core(operator: Operator) -> list[Operator]:
    """The first non-linear operators at or below this one."""
    match operator:
        case Scan():
            return []
        case Projection() | Selection() | UnionAll():
            return [core for below in inputs_of(operator) for core in _core(below)]
        case _:
            return [operator]


def _refuse_maps(operator: Operator, types: OperatorTypes) -> None:
    """Rows are compared by all their columns, and Spark cannot compare maps."""
    if isinstance(operator, Match | Aggregate | Ranked):
        for below in inputs_of(operator):
            refuse_maps(below, types)


def refuse_maps(operator: Operator, types: OperatorTypes) -> None:
    """Refuse columns that are maps or contain maps."""
    for column in types.schema(operator):
        if "map<" in ddl_type(column.type):
            name = _NUMBER_SUFFIX.sub("", column.name)
            raise ProjectError(
                "view-unsupported",
                f"column '{name}' is a map: a view compares rows by all columns, and maps cannot be compared",
                hint="select the values you need, m['key'], or map_entries(m)",
            )
