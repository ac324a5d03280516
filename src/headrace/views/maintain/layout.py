"""What a view keeps between batches, and which changes are computed once and then used by several texts."""

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
"""What was put behind the name that a column has in the text."""


@dataclass
class Layout:
    """Operators in the order in which their changes are computed."""

    taken: dict[Operator, str] = field(default_factory=dict)
    """Those whose changes are computed once, with the name that they get."""
    kept: set[Operator] = field(default_factory=set)
    """Those whose result, or whose sums, are kept from batch to batch."""
    sums: dict[Operator, Sums] = field(default_factory=dict)
    """Aggregates that are kept as sums."""


def layout(root: Operator, types: OperatorTypes) -> Layout:
    """Sums, and what was remembered of groups, are always kept. Besides, a join needs its inputs as they were, and so
    does a group, of the values that are touched: tables have that themselves, and below a group a join can be computed
    again from the touched values; all else is kept."""
    made = Layout()
    for operator in _bottom_up(root):
        _refuse_maps(operator, types)
        if isinstance(operator, Aggregate) and (sums := as_sums(operator, types)) is not None:
            made.sums[operator] = sums
        if isinstance(operator, Aggregate | Ranked):
            made.taken[operator] = ""
            made.kept.add(operator)
        if isinstance(operator, Join | Match | Aggregate | Ranked) and operator not in made.sums:
            core = [one for below in inputs_of(operator) for one in _core(below)]
            made.taken |= dict.fromkeys(core, "")
            made.kept |= {one for one in core if isinstance(operator, Join) or not isinstance(one, Join)}
    order = [one for one in dict.fromkeys(_bottom_up(root)) if one in made.taken]
    made.taken = {one: f"r{number}" for number, one in enumerate(order)}
    return made


def _bottom_up(operator: Operator) -> Iterator[Operator]:
    for below in inputs_of(operator):
        yield from _bottom_up(below)
    yield operator


def _core(operator: Operator) -> list[Operator]:
    """The operators that are not linear, right below those that are."""
    match operator:
        case Scan():
            return []
        case Projection() | Selection() | UnionAll():
            return [core for below in inputs_of(operator) for core in _core(below)]
        case _:
            return [operator]


def _refuse_maps(operator: Operator, types: OperatorTypes) -> None:
    """Rows are told apart by all their columns, and Spark cannot compare maps."""
    if isinstance(operator, Match | Aggregate | Ranked):
        for below in inputs_of(operator):
            refuse_maps(below, types)


def refuse_maps(operator: Operator, types: OperatorTypes) -> None:
    """Refuse columns that are maps, or have maps in them."""
    for one in types.schema(operator):
        if "map<" in ddl_type(one.type):
            name = _NUMBER_SUFFIX.sub("", one.name)
            raise ProjectError(
                "view-unsupported",
                f"column '{name}' is a map: rows of a view are compared by all their columns, and maps cannot be",
                hint="select the values that are needed, m['key'], or map_entries(m)",
            )
