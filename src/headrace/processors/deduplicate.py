"""The first rows of keys, without repeats."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pydantic import Field, PrivateAttr, field_validator

from headrace.core.filters import ColumnFilter
from headrace.core.options.durations import Duration, format_duration
from headrace.core.processor import PlanContext, StatefulStep, StepContext
from headrace.core.python_stage import PythonStage
from headrace.core.runtime.lazy import lazy_modules
from headrace.processors._steps.columns import check_key, heads, type_of, with_type
from headrace.processors._steps.queries import ROWS, check_columns, column_names, condition, filters_of, rows_table
from headrace.sql.query import parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.processors._keyed import dedup_work, keyed_filter
else:
    dedup_work, keyed_filter = lazy_modules(
        "headrace.processors._keyed.dedup_work", "headrace.processors._keyed.keyed_filter"
    )

_CONSIDERED = "_considered"


class Deduplicate(StatefulStep):
    """Passes the first row of a key and drops its repeats for a time, which repeats do not extend.

    Time is the event time if the rows come from a stream that has one, else the time of the batch. A row is a repeat if
    a row of its key that passed is less than `ttl` away; a row that is `ttl` or more after it passes and starts a new
    period. Within a batch rows are processed in the order of their event times. A row up to `ttl` behind the watermark
    is treated exactly like one in time; an even later one may pass although it is a repeat, and later windows treat it
    as late. Rows whose keys are all null are not repeats of each other.

    With `mark` repeats pass too, and a column tells them apart. With `when` rows that do not fulfil a condition pass
    unchecked: they are not remembered, and their mark is null.

    Delivery: the seen keys are part of the flow's checkpoint, so a batch that runs again drops the same rows. Order is
    not kept: rows are shuffled by key. Scale: 24 bytes per key and period, in RocksDB, removed after `ttl` (twice `ttl`
    with event time); keys are compared by a hash of 128 bits. Only keys go through the shuffle: on a local master the
    rows of a batch wait in Spark's folder for temporary files, elsewhere they are shuffled too. A condition of
    comparisons of single columns joined by AND is the cheapest.
    """

    type: Literal["deduplicate"] = "deduplicate"
    key: list[str] = Field(
        min_length=1,
        description="The columns, or fields of structs such as `order.id`, that identify a row.",
        examples=[["order_number"]],
    )
    ttl: Duration = Field(
        description="For how long after the first row of a key its repeats are dropped.", examples=["1h"]
    )
    mark: str | None = Field(
        None,
        min_length=1,
        description="A column that says whether a row is a repeat (true or false). Default: repeats are dropped.",
        examples=["repeat"],
    )
    when: str | None = Field(
        None,
        description="A condition, in Spark SQL: rows for which it is not true pass unchecked. Default: all rows are "
        "checked.",
        examples=["producer IN ('portal', 'desktop')"],
    )

    _sql: str = PrivateAttr("")

    @field_validator("when")
    @classmethod
    def _is_a_condition(cls, value: str | None) -> str | None:
        if value is not None:
            condition(value)
        return value

    @property
    def state_name(self) -> str:
        return "deduplicate"

    @property
    def label(self) -> str:
        when = "" if self.when is None else f" when {' '.join(self.when.split())}"
        mark = "" if self.mark is None else f", marked as {self.mark}"
        return f"deduplicate by {', '.join(self.key)} for {format_duration(self.ttl)}{when}{mark}"

    def bound(self, project: PlanContext) -> Deduplicate:
        bound = self.model_copy()
        bound._sql = "" if self.when is None else project.written_out(_query(self.when))
        return bound

    @property
    def statements(self) -> tuple[str, ...]:
        return (self._sql,) if self._sql else ()

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        if wanted is None:
            return None
        read = column_names(condition(self.when)) if self.when else frozenset()
        return wanted - {self.mark} | heads(self.key) | read

    def output(self, schema: pa.Schema) -> pa.Schema:
        for name in self.key:
            check_key(type_of(schema, name, "deduplicate"), name, "deduplicate")
        if self.when is not None:
            check_columns(parse(condition(self.when)), schema)
        return schema if self.mark is None else with_type(schema, self.mark, pa.bool_())

    @property
    def state_options(self) -> Mapping[str, Any]:
        """The options, and the hash by which keys are compared."""
        return {**super().state_options, "hash": "blake2b"}

    def apply(self, rows: DataFrame, at: StepContext) -> DataFrame:
        return self.extend(PythonStage.of(rows), at).finish()

    def extend(self, stage: PythonStage, at: StepContext) -> PythonStage:
        """Hashing keys, and evaluating a simple condition, ends the open stage. Fetching the rows that pass opens a new
        one, which later steps extend."""
        output = self.output(stage.schema)
        considered = self._simple(stage.schema)
        if considered is None:
            stage, considered = self._considered(stage.finish()), (ColumnFilter(_CONSIDERED, "is true"),)
        time = at.event_time if at.event_time in stage.schema.names else None
        ttl = self.ttl // timedelta(microseconds=1)
        row_filter = dedup_work.DedupFilter(ttl, time, at.clock, considered, self.mark is not None)
        return keyed_filter.filter_by_key(stage, self.key, row_filter, self.mark, output, at)

    def _simple(self, schema: pa.Schema) -> tuple[ColumnFilter, ...] | None:
        return () if self.when is None else filters_of(condition(self.when), schema)

    def _considered(self, rows: DataFrame) -> PythonStage:
        assert self.when is not None
        with rows_table(rows):
            return PythonStage.of(rows.sparkSession.sql(self._sql or _query(self.when)))


def _query(when: str) -> str:
    return f"SELECT *, coalesce((\n{when}\n), false) AS {_CONSIDERED} FROM {ROWS}"
