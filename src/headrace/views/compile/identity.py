"""An identity for the rows of a view that has no key: `_id`."""

from __future__ import annotations

from dataclasses import replace

from headrace.core.errors import ProjectError
from headrace.core.schema import quoted
from headrace.views.algebra.operators import ID, Aggregate, Operator, Projection, Selection, ViewPlan


def with_identity(view: ViewPlan) -> ViewPlan:
    """The view with a key: its own, or `_id`, which tells what is in the row and which copy of it this is.

    The one row of an aggregate without groups is always the same one.
    """
    if view.key:
        return view
    if ID in view.columns:
        raise ProjectError(
            "view-key",
            f"the view has no key, so its rows are told apart by a column `{ID}`, and it has one of that name",
            hint="say what identifies a row (`key`), or give the column another name",
        )
    if not _is_one_row(view.root):
        return replace(view, key=(ID,))
    kept = tuple((name, quoted(name)) for name in view.root.columns)
    return ViewPlan(Projection(view.root, (*kept, (ID, "'1'"))), (*view.columns, ID), (ID,))


def adds_id(view: ViewPlan) -> bool:
    """Whether `_id` is a column that comes to those of the view."""
    return view.key == (ID,) and ID not in view.columns


def columns_of(view: ViewPlan) -> tuple[str, ...]:
    """The columns of the result."""
    return (ID, *view.columns) if adds_id(view) else view.columns


def _is_one_row(operator: Operator) -> bool:
    match operator:
        case Aggregate(_, keys, calls):
            return not keys and bool(calls)
        case Projection(below) | Selection(below):
            return _is_one_row(below)
        case _:
            return False
