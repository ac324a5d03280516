"""Delta tables, read without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError
from headrace.core.runtime.lazy import lazy_modules
from headrace.core.schema import from_ddl, to_ddl

if TYPE_CHECKING:
    import deltalake
    import deltalake.exceptions as delta_errors
else:
    deltalake, delta_errors = lazy_modules("deltalake", "deltalake.exceptions")

CHANGE_FEED = "delta.enableChangeDataFeed"
"""The property of a table that records its changes."""


def open_table(path: str, context: Context) -> deltalake.DeltaTable:
    """The table at a path of the project as it is now; a ProjectError when it does not exist."""
    place = context.path(path)
    try:
        return deltalake.DeltaTable(place)
    except delta_errors.TableNotFoundError as error:
        raise ProjectError(
            "lake-missing",
            f"there is no lake table at '{path}' (looked in {place})",
            hint="run the flow that writes it first, or fix the path",
            exit_code=Exit.NOT_FOUND,
        ) from error


def columns_of(table: deltalake.DeltaTable) -> pa.Schema:
    """The columns of a table, with the types that Spark has for them."""
    return from_ddl(to_ddl(pa.schema(table.schema().to_arrow())))


def keeps_change_feed(table: deltalake.DeltaTable) -> bool:
    """Whether a table records its changes."""
    return table.metadata().configuration.get(CHANGE_FEED) == "true"
