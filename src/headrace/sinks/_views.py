"""What sinks that hold views share: whose key counts, what options make no sense, and changes as rows."""

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
"""A boolean column beside those of a view: whether the row is there no more."""


def view_key(sink: Sink, option: str, given: Sequence[str], key: Sequence[str]) -> list[str]:
    """The columns by which a sink finds the rows of a view: those of its key, in the order that the option has."""
    if not key:
        raise ProjectError(
            "sink-needs-key",
            f"sink {sink.label} replaces rows by key, and the view has none",
            hint="give the flow a `key`: columns that are never the same in two rows of its result",
        )
    if given and sorted(given) != sorted(key):
        raise ProjectError(
            "sink-view-key",
            f"`{option}` of sink {sink.label} is {', '.join(given)}, and the key of the view is {', '.join(key)}",
            hint=f"leave out `{option}`, or name the columns of the view's key",
        )
    return list(given or key)


def refuse_options(sink: Sink, *options: str) -> None:
    """Refuse options that are about rows of which nobody knows what they do to those already there."""
    for option in options:
        if getattr(sink, option):
            raise ProjectError(
                "sink-view-option",
                f"sink {sink.label} holds a view, for which `{option}` has no meaning",
                hint=f"leave out `{option}`: a view itself tells what is inserted, updated and deleted",
            )


def begins(batch: Batch) -> bool:
    """Whether this is the first batch of a generation of a view.

    From here on all rows of the view come; those that an earlier generation has left are not part of it.
    """
    return batch.batch_id == 0 and not batch.generation.startswith("replay-")


def as_rows(changes: DataFrame) -> DataFrame:
    """The row of each change, and whether it is gone."""
    return changes.withColumn(GONE, F.col(OP) == int(Op.DELETE)).drop(OP, OLD)
