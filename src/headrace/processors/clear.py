"""Clears the values of columns."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import pyarrow as pa
from pydantic import Field

from headrace.core.errors import ProjectError
from headrace.core.processor import Processor, StepContext
from headrace.core.records import spark_schema
from headrace.core.schema import ddl_type
from headrace.processors._steps.columns import heads, replaced, type_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class Clear(Processor):
    """Clears the values of columns: they become null, or the empty value of their type.

    The columns, their types, the order and the number of rows stay. A field of a null struct stays null.
    """

    type: Literal["clear"] = "clear"
    columns: list[str] = Field(
        min_length=1,
        description="The columns, or fields of structs such as `customer.email`.",
        examples=[["phone", "customer.email"]],
    )
    to: Literal["null", "empty"] = Field(
        "null",
        description="`null`, or `empty`: an empty text or array, 0 or false. A time or a struct has no empty value.",
    )

    realtime: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return f"clear {', '.join(self.columns)}"

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        """With its columns, which are checked again when the flow starts."""
        return None if wanted is None else wanted | heads(self.columns)

    def output(self, schema: pa.Schema) -> pa.Schema:
        for name in self.columns:
            kind = type_of(schema, name, "clear")
            if self.to == "empty" and not pa.types.is_null(kind):
                _empty(kind, name)
        return schema

    def apply(self, rows: DataFrame, at: StepContext) -> DataFrame:
        schema = spark_schema(rows)
        for name in self.columns:
            kind = type_of(schema, name, "clear")
            text = "NULL" if self.to == "null" else _empty(kind, name)
            rows = replaced(rows, name, partial(_constant, text, ddl_type(kind)))
        return rows


def _constant(text: str, kind: str, _value: Column) -> Column:
    from pyspark.sql import functions as F

    return F.expr(f"CAST({text} AS {kind})")


def _empty(kind: pa.DataType, name: str) -> str:
    """The empty value of a type, in SQL."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "''"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "X''"
    if pa.types.is_boolean(kind):
        return "false"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "array()"
    if pa.types.is_map(kind):
        return "map()"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "0"
    raise ProjectError(
        "step-type",
        f"'clear' cannot empty '{name}': a value of type {ddl_type(kind)} is never empty",
        hint="use to: null, or name the fields of a struct",
    )
