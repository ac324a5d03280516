"""Features for a feature store."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import pyarrow as pa
from pydantic import Field

from headrace.core.component import Options
from headrace.core.errors import ProjectError
from headrace.core.processor import Processor, StepContext
from headrace.core.records import spark_schema
from headrace.core.schema import TIMESTAMP, ddl_type
from headrace.processors._steps.columns import column, heads, type_of, with_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Slot = Literal["bytes", "string", "int32", "int64", "double", "float", "bool", "timestamp"]

_TYPES: dict[Slot, pa.DataType] = {
    "bytes": pa.binary(),
    "string": pa.string(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "double": pa.float64(),
    "float": pa.float32(),
    "bool": pa.bool_(),
    "timestamp": TIMESTAMP,
}
_FEATURE = pa.struct(
    [
        ("key", pa.string()),
        ("value", pa.struct([(f"{slot}_value", kind) for slot, kind in _TYPES.items()])),
        ("name", pa.string()),
    ]
)


class FeatureOf(Options):
    """One feature: the columns of its key and of its value."""

    key: str = Field(description="The column with the feature's key.", examples=["customer_id"])
    value: str = Field(description="The column with its value.", examples=["order_count"])
    type: Slot | None = Field(
        None, description="The slot; the value is cast to its type. Default: the slot of the column's type."
    )


class Feature(Processor):
    """Adds a column with features: key, value in one of eight typed slots, and the key again as name.

    The column is an array of structs of `key`, `value` and `name`; `value` is a struct of bytes_value, string_value,
    int32_value, int64_value, double_value, float_value, bool_value and timestamp_value, all but one of them null. A
    value that cannot be cast to that type fails the flow. Native: no Python. Order and number of rows stay.
    """

    type: Literal["feature"] = "feature"
    column: str = Field("features", min_length=1, description="The column.", examples=["features"])
    features: list[FeatureOf] = Field(
        min_length=1,
        description="The features of a row, in the order of the array.",
        examples=[[{"key": "customer_id", "value": "order_count", "type": "int64"}]],
    )

    realtime: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return f"feature {self.column} of {', '.join(feature.value for feature in self.features)}"

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        if wanted is None:
            return None
        read = [name for feature in self.features for name in (feature.key, feature.value)]
        return wanted - {self.column} | heads(read)

    def output(self, schema: pa.Schema) -> pa.Schema:
        for feature in self.features:
            type_of(schema, feature.key, "feature")
            kind = type_of(schema, feature.value, "feature")
            if feature.type is None and not pa.types.is_null(kind):
                _slot(kind, feature.value)
        return with_type(schema, self.column, pa.list_(_FEATURE))

    def apply(self, rows: DataFrame, at: StepContext) -> DataFrame:
        from pyspark.sql import functions as F

        schema = spark_schema(rows)
        kinds = [type_of(schema, feature.value, "feature") for feature in self.features]
        features = [self._feature(rows, feature, kind) for feature, kind in zip(self.features, kinds, strict=True)]
        return rows.withColumn(self.column, F.array(*features))

    @staticmethod
    def _feature(rows: DataFrame, feature: FeatureOf, kind: pa.DataType) -> Column:
        from pyspark.sql import functions as F

        slot = feature.type or _slot(kind, feature.value)
        slots = [
            (column(rows, feature.value) if name == slot else F.lit(None)).cast(ddl_type(of)).alias(f"{name}_value")
            for name, of in _TYPES.items()
        ]
        key = column(rows, feature.key).cast("string")
        return F.struct(key.alias("key"), F.struct(*slots).alias("value"), key.alias("name"))


def _slot(kind: pa.DataType, name: str) -> Slot:
    if pa.types.is_decimal(kind):
        return "double"
    if pa.types.is_int8(kind) or pa.types.is_int16(kind):
        return "int32"
    for slot, of in _TYPES.items():
        if kind == of:
            return slot
    raise ProjectError(
        "step-type",
        f"there is no slot for '{name}', which is of type {ddl_type(kind)}",
        hint=f"name the slot it should be cast to: {', '.join(_TYPES)}",
    )
