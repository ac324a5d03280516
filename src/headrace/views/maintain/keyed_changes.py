"""Weighted rows of a view as changes by key: what a sink that holds the view is given."""

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
    """One change per key, with `__op` and `__old` as `Sink.write_changes` wants them.

    Two rows of one key fail whoever reads them; within `key_conflicts` as an error that names the key.
    """

    def __init__(self, changed: ResultDelta, key: Sequence[str]) -> None:
        self._changed, self._key = changed, key
        self._rows: DataFrame | None = None
        few = changed.few
        self.few = keyed_table(few, key) if few is not None and _is_plain(few.schema, key) else None
        """The changes, where the driver has them."""

    @property
    def rows(self) -> DataFrame:
        """The changes as Spark has them; computed once for all that read them."""
        if self._rows is None:
            self._rows = keyed_frame(self._changed.frame, self._key).persist()
        return self._rows

    def close(self) -> None:
        """Forget what was computed."""
        if self._rows is not None:
            self._rows.unpersist()


def keyed_frame(changes: DataFrame, key: Sequence[str]) -> DataFrame:
    """One change per key, by Spark."""
    from pyspark.sql import functions as F

    weight = F.col(WEIGHT)
    # a column that is never null in a row is null where there is no old row: `when` without an end says so to Spark
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
    told = F.concat(F.lit(f"{_TWICE} "), F.to_json(F.struct(*(F.col(quoted(name)) for name in key))), F.lit(" (end)"))
    once = (F.col("__came") <= 1) & (F.col("__went") <= 1)
    op = F.when(F.col("__new").isNull(), int(Op.DELETE)).when(F.col(OLD).isNull(), int(Op.INSERT))
    return (
        grouped.where(F.when(once, True).otherwise(F.raise_error(told).cast("boolean")))
        .withColumn("__row", F.coalesce("__new", OLD))
        .select("__row.*", op.otherwise(int(Op.UPDATE)).cast("tinyint").alias(OP), OLD)
    )


def keyed_table(changes: pa.Table, key: Sequence[str]) -> pa.Table:
    """One change per key, of rows that the driver has. Of a key's rows at most one came and at most one went."""
    new, old = ({}, {})  # type: tuple[dict[tuple[object, ...], int], dict[tuple[object, ...], int]]
    keys = zip(*(changes.column(name).to_pylist() for name in key), strict=True)
    for place, (value, weight) in enumerate(zip(keys, changes.column(WEIGHT).to_pylist(), strict=True)):
        side = new if weight > 0 else old
        if value in side or abs(weight) > 1:
            raise _conflict(key, as_text(dict(zip(key, value, strict=True))))
        side[value] = place
    found = list({**old, **new})
    rows = changes.drop_columns([WEIGHT])
    came, went = (pa.array([side.get(value) for value in found], pa.int64()) for side in (new, old))
    op = pc.if_else(came.is_valid(), pc.if_else(went.is_valid(), int(Op.UPDATE), int(Op.INSERT)), int(Op.DELETE))
    before = rows.take(went).combine_chunks()
    gone = pa.StructArray.from_arrays(
        [_whole(column) for column in before.columns], fields=list(rows.schema), mask=went.is_null()
    )
    made = rows.take(pc.coalesce(came, went))
    return made.append_column(pa.field(OP, pa.int8()), op.cast(pa.int8())).append_column(OLD, gone)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    made = column.combine_chunks()
    return made if isinstance(made, pa.Array) else pa.concat_arrays(made.chunks)


def _is_plain(schema: pa.Schema, key: Sequence[str]) -> bool:
    """Whether equal keys are equal to Python as they are to Spark: not so with NaN and what may hold it."""
    kinds = [schema.field(name).type for name in key]
    return bool(key) and not any(pa.types.is_floating(kind) or pa.types.is_nested(kind) for kind in kinds)


@contextmanager
def changes_by_key(changed: ResultDelta, key: Sequence[str]) -> Iterator[KeyedChanges]:
    """The changes by key, for as long as they are needed."""
    with key_conflicts(key), closing(KeyedChanges(changed, key)) as changes:
        yield changes


@contextmanager
def key_conflicts(key: Sequence[str]) -> Iterator[None]:
    """Tells of two rows of one key as an error that a user can mend."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        found = re.search(rf"{_TWICE} (.*?) \(end\)", str(error), re.DOTALL)
        if found is None:
            raise
        raise _conflict(key, found[1]) from error


def _conflict(key: Sequence[str], value: str) -> ProjectError:
    return ProjectError(
        "view-key",
        f"the view has two rows with the key {value}",
        hint=f"declare columns that identify a row ({', '.join(key)} do not), or leave `key` out",
    )
