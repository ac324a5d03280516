"""Common parts of sinks that hold views: the key, options that a view rules out, and changes as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.core.context import Batch
from headrace.core.endpoints import OLD, OP, Op
from headrace.core.errors import ProjectError
from headrace.core.lazy import lazy_modules
from headrace.core.sink import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F
else:
    F = lazy_modules("pyspark.sql.functions")

GONE = "__gone"
"""A boolean column next to those of a view: whether the row is deleted."""


def view_key(sink: Sink, option: str, configured: Sequence[str], key: Sequence[str]) -> list[str]:
    """The columns by which a sink identifies the rows of a view: those of its key, in the order of the option."""
    if not key:
        raise ProjectError(
            "sink-needs-key",
            f"sink {sink.label} replaces rows by key, and the view has none",
            hint="give the flow a `key`: columns that are never the same in two rows of its result",
        )
    if configured and sorted(configured) != sorted(key):
        raise ProjectError(
            "sink-view-key",
            f"`{option}` of sink {sink.label} is {', '.join(configured)}, and the key of the view is {', '.join(key)}",
            hint=f"leave out `{option}`, or name the columns of the view's key",
        )
    return list(configured or key)


def refuse_options(sink: Sink, *options: str) -> None:
    """Refuse options that decide what a row does to existing rows: the changes of a view state that themselves."""
    for option in options:
        if getattr(sink, option):
            raise ProjectError(
                "sink-view-option",
                f"sink {sink.label} holds a view, for which `{option}` has no meaning",
                hint=f"leave out `{option}`: a view itself states what is inserted, updated and deleted",
            )


def begins(batch: Batch) -> bool:
    """Whether this is the first batch of a generation of a view.

    All rows of the view follow; rows of an earlier generation are not part of it.
    """
    return batch.batch_id == 0 and not batch.generation.startswith("replay-")


def as_rows(changes: DataFrame) -> DataFrame:
    """The row of each change, and whether it is deleted."""
    return changes.withColumn(GONE, F.col(OP) == int(Op.DELETE)).drop(OP, OLD)
