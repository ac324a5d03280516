"""Weighted rows of a view as changes by key, for sinks that hold the view."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.encoding.json_values import as_text
from headrace.core.endpoints import OLD, OP, Op
from headrace.core.errors import ProjectError
from headrace.core.schema import quoted
from headrace.core.tables import WEIGHT
from headrace.views.maintain.result_delta import ResultDelta
from headrace.views.maintain.runner import nullable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TWICE = "headrace: two rows of one key"


class KeyedChanges:
    """One change per key, with the columns `__op` and `__old` that `Sink.write_changes` expects.

    Two rows of one key fail the read; within `key_conflicts` with an error that names the key.
    """

    def __init__(self, delta: ResultDelta, key: Sequence[str]) -> None:
        self._delta, self._key = delta, key
        self._rows: DataFrame | None = None
        collected = delta.collected
        self.collected = (
            keyed_table(collected, key) if collected is not None and _is_plain(collected.schema, key) else None
        )
        """The changes, if the driver has them."""

    @property
    def rows(self) -> DataFrame:
        """The changes in Spark, computed once for all readers."""
        if self._rows is None:
            self._rows = keyed_frame(self._delta.frame, self._key).persist()
        return self._rows

    def close(self) -> None:
        if self._rows is not None:
            self._rows.unpersist()


def keyed_frame(changes: DataFrame, key: Sequence[str]) -> DataFrame:
    """One change per key, computed by Spark."""
    from pyspark.sql import functions as F

    weight = F.col(WEIGHT)
    # `when` without `otherwise` makes every column nullable: without an old row even NOT NULL columns are null
    columns = [F.when(weight != 0, F.col(quoted(name))).alias(name) for name in changes.columns if name != WEIGHT]
    row = F.struct(*columns)
    grouped = (
        nullable(changes)
        .groupBy(*(F.col(quoted(name)) for name in key))
        .agg(
            F.max(F.when(weight > 0, row)).alias("__new"),
            F.max(F.when(weight < 0, row)).alias(OLD),
            F.coalesce(F.sum(F.when(weight > 0, weight)), F.lit(0)).alias("__came"),
            F.coalesce(F.sum(F.when(weight < 0, -weight)), F.lit(0)).alias("__went"),
        )
    )
    message = F.concat(
        F.lit(f"{_TWICE} "), F.to_json(F.struct(*(F.col(quoted(name)) for name in key))), F.lit(" (end)")
    )
    at_most_one = (F.col("__came") <= 1) & (F.col("__went") <= 1)
    op = F.when(F.col("__new").isNull(), int(Op.DELETE)).when(F.col(OLD).isNull(), int(Op.INSERT))
    return (
        grouped.where(F.when(at_most_one, True).otherwise(F.raise_error(message).cast("boolean")))
        .withColumn("__row", F.coalesce("__new", OLD))
        .select("__row.*", op.otherwise(int(Op.UPDATE)).cast("tinyint").alias(OP), OLD)
    )


def keyed_table(changes: pa.Table, key: Sequence[str]) -> pa.Table:
    """One change per key, computed in the driver. A key has at most one inserted and at most one deleted row."""
    new, old = ({}, {})  # type: tuple[dict[tuple[object, ...], int], dict[tuple[object, ...], int]]
    keys = zip(*(changes.column(name).to_pylist() for name in key), strict=True)
    for place, (value, weight) in enumerate(zip(keys, changes.column(WEIGHT).to_pylist(), strict=True)):
        side = new if weight > 0 else old
        if value in side or abs(weight) > 1:
            raise _conflict(key, as_text(dict(zip(key, value, strict=True))))
        side[value] = place
    values = list({**old, **new})
    rows = changes.drop_columns([WEIGHT])
    inserted, deleted = (pa.array([side.get(value) for value in values], pa.int64()) for side in (new, old))
    op = pc.if_else(inserted.is_valid(), pc.if_else(deleted.is_valid(), int(Op.UPDATE), int(Op.INSERT)), int(Op.DELETE))
    before = rows.take(deleted).combine_chunks()
    old_rows = pa.StructArray.from_arrays(
        [_whole(column) for column in before.columns], fields=list(rows.schema), mask=deleted.is_null()
    )
    new_rows = rows.take(pc.coalesce(inserted, deleted))
    return new_rows.append_column(pa.field(OP, pa.int8()), op.cast(pa.int8())).append_column(OLD, old_rows)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    return array if isinstance(array, pa.Array) else pa.concat_arrays(array.chunks)


def _is_plain(schema: pa.Schema, key: Sequence[str]) -> bool:
    """Whether Python and Spark agree on equal keys: not for NaN and types that may contain it."""
    kinds = [schema.field(name).type for name in key]
    return bool(key) and not any(pa.types.is_floating(kind) or pa.types.is_nested(kind) for kind in kinds)


@contextmanager
def changes_by_key(delta: ResultDelta, key: Sequence[str]) -> Iterator[KeyedChanges]:
    """The changes by key; computed rows are released at the end."""
    with key_conflicts(key), closing(KeyedChanges(delta, key)) as changes:
        yield changes


@contextmanager
def key_conflicts(key: Sequence[str]) -> Iterator[None]:
    """Turns a Spark failure about two rows of one key into a `ProjectError`."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        match = re.search(rf"{_TWICE} (.*?) \(end\)", str(error), re.DOTALL)
        if match is None:
            raise
        raise _conflict(key, match[1]) from error


def _conflict(key: Sequence[str], value: str) -> ProjectError:
    return ProjectError(
        "view-key",
        f"the view has two rows with the key {value}",
        hint=f"declare columns that identify a row ({', '.join(key)} do not), or leave `key` out",
    )
