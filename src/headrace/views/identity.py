"""An identity for rows of a view that has no key: what is in the row, and which copy of it this is."""

from __future__ import annotations

from dataclasses import replace

from headrace.core.schema import quoted
from headrace.views.algebra import Aggregate, Filter, Operator, Project, Ranked, View

ID = "_id"
_COPY = "__copy"


def identified(view: View) -> View:
    """The view with a key: its own, or a column `_id` that is the same for the same row whenever it comes.

    A row that is there twice has two of them. The one row of an aggregate without groups is always the same one.
    """
    if view.key or ID in view.columns:
        return view
    if _is_one_row(view.root):
        root = _with(view.root, ID, "'1'")
    else:
        copies = f"row_number() OVER (PARTITION BY {_listed(view.root)} ORDER BY {quoted(view.root.columns[0])})"
        content = ", ".join(f"'c{number}', {quoted(name)}" for number, name in enumerate(view.root.columns))
        identity = f"concat(md5(to_json(named_struct({content}))), '-', {quoted(_COPY)})"
        numbered = Ranked(view.root, view.root.columns, ((_COPY, copies),))
        kept = tuple((name, quoted(name)) for name in view.root.columns)
        root = Project(numbered, (*kept, (ID, identity)))
    return replace(view, root=root, columns=(*view.columns, ID), key=(ID,))


def _with(operator: Operator, name: str, sql: str) -> Project:
    return Project(operator, (*((one, quoted(one)) for one in operator.columns), (name, sql)))


def _listed(operator: Operator) -> str:
    return ", ".join(map(quoted, operator.columns))


def _is_one_row(operator: Operator) -> bool:
    match operator:
        case Aggregate(_, keys, calls):
            return not keys and bool(calls)
        case Project(below) | Filter(below):
            return _is_one_row(below)
        case _:
            return False
