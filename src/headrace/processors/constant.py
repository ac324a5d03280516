"""Columns with a fixed value."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import pyarrow as pa
from pydantic import Field

from headrace.core.processor import Processor, StepContext
from headrace.core.schema import ddl_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Value = bool | int | float | str | None


class Constant(Processor):
    """Adds columns with the same value in every row, or replaces existing columns by a fixed value.

    Costs nothing per row: the value is part of the query. Order and number of rows stay.
    """

    type: Literal["constant"] = "constant"
    values: dict[str, Value] = Field(
        min_length=1, description="The columns and their values.", examples=[{"country": "ID", "version": 2}]
    )

    realtime: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return f"constant {', '.join(self.values)}"

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        return None if wanted is None else wanted - self.values.keys()

    def output(self, schema: pa.Schema) -> pa.Schema:
        for name, value in self.values.items():
            index = schema.get_field_index(name)
            field = pa.field(name, _TYPES[type(value)])
            schema = schema.append(field) if index < 0 else schema.set(index, field)
        return schema

    def apply(self, rows: DataFrame, at: StepContext) -> DataFrame:
        from pyspark.sql import functions as F

        literals = {name: F.lit(value).cast(ddl_type(_TYPES[type(value)])) for name, value in self.values.items()}
        return rows.withColumns(literals)


_TYPES = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    type(None): pa.string(),
}
