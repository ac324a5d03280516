"""Rows whose key has not been there for some time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pydantic import Field, PrivateAttr, field_validator

from headrace.core.durations import Duration, format_duration
from headrace.core.filters import ColumnFilter
from headrace.core.processor import PlanContext, StatefulStep, StepContext
from headrace.core.python_stage import PythonStage
from headrace.processors._steps.columns import check_key, heads, type_of, with_type
from headrace.processors._steps.queries import ROWS, check_columns, column_names, condition, filters_of, rows_table
from headrace.sql.query import parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_CONSIDERED = "_considered"


class Deduplicate(StatefulStep):
    """Lets the first row of a key through and drops its repeats for a time, which they do not prolong.

    Time is the event time where the rows are those of a stream that has one, else that of the batch. A row is a repeat
    when a row of its key that came through is less than `ttl` away; one that is `ttl` or more after it comes through
    and begins anew. Within a batch rows are taken in the order of their event times. A row that is up to `ttl` behind
    the watermark is judged as exactly as one in time; an even later one may come through although it is a repeat, and
    windows after this step treat it as late. Rows whose keys are all null are no repeats of each other.

    With `mark` repeats come through too, told by a column, and with `when` rows that do not fulfil a condition are not
    looked at: they come through, are remembered by nobody, and their mark is null.

    Delivery: what has been seen is part of the flow's checkpoint, so a batch that runs again drops the same rows. Order
    is not kept: rows are brought together by key. Scale: 24 bytes per key and time, in RocksDB, forgotten after `ttl`
    (twice `ttl` of event time); keys are compared by a hash of 128 bits. Only keys go through the shuffle: on a local
    master the rows of a batch wait in Spark's folder for temporary files, elsewhere they go along. A condition made of
    comparisons of single columns joined by AND costs least.
    """

    type: Literal["deduplicate"] = "deduplicate"
    key: list[str] = Field(
        min_length=1,
        description="The columns, or fields of structs such as `order.id`, that make a row the same as another.",
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
        description="A condition, in Spark SQL: rows for which it is not true come through as they are. Default: all "
        "rows are looked at.",
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
        """The keys and the columns of the condition too."""
        if wanted is None:
            return None
        return (
            wanted - {self.mark} | heads(self.key) | (column_names(condition(self.when)) if self.when else frozenset())
        )

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
        from headrace.processors._keyed.dedup_work import DedupFilter
        from headrace.processors._keyed.keyed_filter import filter_by_key

        output = self.output(stage.schema)
        considered = self._simple(stage.schema)
        if considered is None:
            stage, considered = self._considered(stage.finish()), (ColumnFilter(_CONSIDERED, "is true"),)
        time = at.event_time if at.event_time in stage.schema.names else None
        ttl = self.ttl // timedelta(microseconds=1)
        row_filter = DedupFilter(ttl, time, at.clock, considered, self.mark is not None)
        return filter_by_key(stage, self.key, row_filter, self.mark, output, at)

    def _simple(self, schema: pa.Schema) -> tuple[ColumnFilter, ...] | None:
        return () if self.when is None else filters_of(condition(self.when), schema)

    def _considered(self, rows: DataFrame) -> PythonStage:
        assert self.when is not None
        with rows_table(rows):
            return PythonStage.of(rows.sparkSession.sql(self._sql or _query(self.when)))


def _query(when: str) -> str:
    return f"SELECT *, coalesce((\n{when}\n), false) AS {_CONSIDERED} FROM {ROWS}"
