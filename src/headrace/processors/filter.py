"""Drops rows that do not fulfil a condition."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import pyarrow as pa
from pydantic import Field, PrivateAttr, field_validator

from headrace.core.processor import PlanContext, Processor, StepContext
from headrace.processors._steps.queries import check_columns, column_names, condition, rows_table
from headrace.sql.query import parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Filter(Processor):
    """Passes the rows for which a condition is true.

    Others are dropped, also those for which it is null; `filter_invalid` keeps them as dead letters instead. Order
    stays. A condition that cannot be computed for a row, such as a text that is not a number, fails the flow: use
    try_cast.
    """

    type: Literal["filter"] = "filter"
    where: str = Field(
        min_length=1, description="The condition, in Spark SQL.", examples=["amount > 0 AND status = 'PAID'"]
    )

    realtime: ClassVar[bool] = True
    _sql: str = PrivateAttr("")

    @field_validator("where")
    @classmethod
    def _is_a_condition(cls, value: str) -> str:
        condition(value)
        return value

    @property
    def label(self) -> str:
        return f"filter {' '.join(self.where.split())}"

    def bound(self, project: PlanContext) -> Filter:
        bound = self.model_copy()
        bound._sql = project.written_out(condition(self.where))
        return bound

    @property
    def statements(self) -> tuple[str, ...]:
        return (self._sql,) if self._sql else ()

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        return None if wanted is None else wanted | column_names(condition(self.where))

    def output(self, schema: pa.Schema) -> pa.Schema:
        check_columns(parse(condition(self.where)), schema)
        return schema

    def apply(self, rows: DataFrame, at: StepContext) -> DataFrame:
        with rows_table(rows):
            return rows.sparkSession.sql(self._sql or condition(self.where))
