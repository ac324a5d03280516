"""The key `_id` of a view that has no key of its own."""

from __future__ import annotations

from dataclasses import replace

from headrace.core.errors import ProjectError
from headrace.core.schema import quoted
from headrace.views.algebra.operators import ID, Aggregate, Operator, Projection, Selection, ViewPlan


def with_identity(view: ViewPlan) -> ViewPlan:
    """The view with a key: its own, or `_id`, which identifies the row's content and the copy.

    The single row of an aggregate without groups has a constant `_id`.
    """
    if view.key:
        return view
    if ID in view.columns:
        raise ProjectError(
            "view-key",
            f"the view has no key, so Headrace adds a column `{ID}`, but the view already has a column of that name",
            hint="declare what identifies a row (`key`), or rename the column",
        )
    if not _is_one_row(view.root):
        return replace(view, key=(ID,))
    columns = tuple((name, quoted(name)) for name in view.root.columns)
    return ViewPlan(Projection(view.root, (*columns, (ID, "'1'"))), (*view.columns, ID), (ID,))


def adds_id(view: ViewPlan) -> bool:
    """Whether a column `_id` is added to those of the view."""
    return view.key == (ID,) and ID not in view.columns


def columns_of(view: ViewPlan) -> tuple[str, ...]:
    return (ID, *view.columns) if adds_id(view) else view.columns


def _is_one_row(operator: Operator) -> bool:
    match operator:
        case Aggregate(_, keys, calls):
            return not keys and bool(calls)
        case Projection(below) | Selection(below):
            return _is_one_row(below)
        case _:
            return False
