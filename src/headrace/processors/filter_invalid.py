"""Keeps rows that break a rule as dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, PrivateAttr, field_validator, model_validator

from headrace.core.errors import ProjectError
from headrace.core.processor import Batches, PlanContext, Processor, StepContext, StepLetters
from headrace.core.records import spark_schema
from headrace.core.schema import to_ddl
from headrace.processors._steps.columns import column, heads, type_of
from headrace.processors._steps.queries import check_columns, column_names, condition, rows_table
from headrace.sql.query import parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_REASON = "_invalid"


class FilterInvalid(Processor):
    """Passes the rows that fulfil some rules; others become dead letters, and the flow continues.

    The reason of a dead letter is `missing-value` or `condition-not-met`. Every row either passes or is a dead letter,
    also when a batch runs again. The rules are native expressions, but a Python stage writes the dead letters. Order
    stays.
    """

    type: Literal["filter_invalid"] = "filter_invalid"
    required: list[str] = Field(
        default=[],
        description="Columns, or fields of structs such as `customer.id`, that must not be null.",
        examples=[["order_id", "customer.id"]],
    )
    where: str | None = Field(
        None, description="A condition, in Spark SQL, that must be true.", examples=["amount >= 0"]
    )
    invalid: Literal["dead_letter", "skip", "fail"] = Field(
        "dead_letter",
        description="What to do with a row that breaks a rule: keep it as a dead letter, skip it (a dead letter that "
        "counts, without the row) or fail the flow.",
    )

    _sql: str = PrivateAttr("")

    @field_validator("where")
    @classmethod
    def _is_a_condition(cls, value: str | None) -> str | None:
        if value is not None:
            condition(value)
        return value

    @model_validator(mode="after")
    def _some_rule(self) -> FilterInvalid:
        if not self.required and self.where is None:
            raise ValueError("needs 'required' or 'where'")
        return self

    @property
    def label(self) -> str:
        rules = [f"{name} is there" for name in self.required]
        return f"filter_invalid {' and '.join([*rules, *([' '.join(self.where.split())] if self.where else [])])}"

    def bound(self, project: PlanContext) -> FilterInvalid:
        bound = self.model_copy()
        bound._sql = "" if self.where is None else project.written_out(_query(self.where))
        return bound

    @property
    def statements(self) -> tuple[str, ...]:
        return (self._sql,) if self._sql else ()

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        if wanted is None:
            return None
        return wanted | heads(self.required) | (column_names(condition(self.where)) if self.where else frozenset())

    def output(self, schema: pa.Schema) -> pa.Schema:
        for name in self.required:
            type_of(schema, name, "filter_invalid")
        if self.where is not None:
            check_columns(parse(condition(self.where)), schema)
        return schema

    def apply(self, rows: DataFrame, at: StepContext) -> DataFrame:
        from pyspark.sql import functions as F

        schema = spark_schema(rows)
        missing = [F.when(column(rows, name).isNull(), F.lit(name)) for name in self.required]
        checked = rows.select("*", F.concat(F.lit("missing-value:"), F.coalesce(*missing, F.lit(None))).alias(_REASON))
        if self.where is not None:
            with rows_table(checked):
                checked = rows.sparkSession.sql(self._sql or _query(self.where))
        step = _InvalidRowSort(at.letters, self.invalid, self.where or "")
        return checked.mapInArrow(step, to_ddl(schema))


def _query(where: str) -> str:
    broken = f"CASE WHEN coalesce((\n{where}\n), false) THEN NULL ELSE 'condition-not-met:' END"
    return f"SELECT * EXCEPT ({_REASON}), coalesce({_REASON}, {broken}) AS {_REASON} FROM rows"


@dataclass
class _InvalidRowSort:
    """Keeps rows with a reason as dead letters."""

    letters: StepLetters
    invalid: str
    where: str

    def __call__(self, batches: Batches) -> Batches:
        try:
            for batch in batches:
                reasons = batch.column(_REASON)
                if reasons.null_count < batch.num_rows:
                    self._keep(batch.drop_columns([_REASON]), reasons)
                    batch = batch.filter(pc.is_null(reasons))
                yield batch.drop_columns([_REASON])
        finally:
            self.letters.flush()

    def _keep(self, rows: pa.RecordBatch, reasons: pa.Array) -> None:
        for index in pc.indices_nonzero(pc.is_valid(reasons)).to_pylist():
            reason, _, name = reasons[index].as_py().partition(":")
            detail = f"{name} is null" if name else f"not true: {self.where}"
            if self.invalid == "fail":
                raise ProjectError("invalid-row", f"a row is not valid ({reason}): {detail}")
            self.letters.keep(rows, index, reason, detail, whole=self.invalid == "dead_letter")
