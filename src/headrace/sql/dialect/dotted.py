"""Columns named `driver.name`: sinks make of them one nested field `driver`, so their names must fit together."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.errors import ProjectError
from headrace.sql.query import Query


def check_dotted(query: Query) -> None:
    """Refuse a query whose dotted columns cannot be put together, at the place of the column."""
    problem = dotted_problem(query.output)
    if problem is None:
        return
    name, message, hint = problem
    place = [one for one in query.tree.selects if one.alias_or_name == name]
    raise query.error_at(place[-1] if place else query.tree, "dotted-column", message, hint)


def check_dotted_columns(columns: Sequence[str]) -> None:
    """The same for the columns of rows, which are all known only with Spark."""
    problem = dotted_problem(columns)
    if problem is not None:
        raise ProjectError("dotted-column", problem[1], hint=problem[2])


def dotted_problem(columns: Sequence[str]) -> tuple[str, str, str] | None:
    """A dotted column that conflicts with another: its name, the problem and the hint."""
    dotted = [name for name in columns if "." in name]
    for name in dotted:
        if not all(part.strip() for part in name.split(".")):
            return name, f"column '{name}' has an empty part in its name", "write it as `outer.inner`"
        if columns.count(name) > 1:
            return name, f"there are two columns '{name}'", "rename one of them"
        heads = [name.rsplit(".", count)[0] for count in range(1, name.count(".") + 1)]
        clash = next((head for head in heads if head.lower() in (one.lower() for one in columns)), None)
        if clash is not None:
            message = f"column '{name}' is a part of '{clash}', which is a column of its own"
            return name, message, f"rename '{clash}', or select its parts: `{clash}.…`"
    return None
