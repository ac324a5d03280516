"""`type: raw`: records as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import pyarrow as pa
from pydantic import ConfigDict, Field

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.format import Decoded, Decoder, Encoder, Format
from headrace.formats._arrays import batch_of

if TYPE_CHECKING:
    from pyspark.sql import Column


class RawFormat(Format):
    """The bytes of a record in one column `value`, untouched; or as a string, where bytes that are not UTF-8 become �.

    Order: kept. No record is ever bad; a null value is null.
    """

    model_config = ConfigDict(populate_by_name=True)
    can_fail: ClassVar[bool] = False
    verbatim: ClassVar[bool] = True

    type: Literal["raw"] = "raw"
    as_: Literal["binary", "string"] = Field("binary", alias="as", description="The type of the column `value`.")

    def record_schema(self, context: Context) -> pa.Schema:
        return pa.schema([("value", pa.string() if self.as_ == "string" else pa.binary())])

    def decoder(self, context: Context, schema: pa.Schema) -> Decoder:
        """A decoder that returns the value."""
        return _RawDecoder(schema)

    def encoder(self, context: Context, schema: pa.Schema) -> Encoder:
        """An encoder of one column, which is binary or string."""
        if len(schema) != 1 or not (
            pa.types.is_binary(schema.field(0).type) or pa.types.is_string(schema.field(0).type)
        ):
            columns = ", ".join(f"{field.name} {field.type}" for field in schema) or "none"
            hint = "select one column, or write json"
            raise ProjectError(
                "wrong-column-type", f"format 'raw' writes one binary or string column, found: {columns}", hint=hint
            )
        return _RawEncoder()

    def native_decode(self, value: Column, schema: pa.Schema) -> Column:
        from pyspark.sql import functions as F

        column = F.make_valid_utf8(value.cast("string")) if self.as_ == "string" else value.cast("binary")
        return F.struct(*(column.alias(name) for name in schema.names))


class _RawDecoder(Decoder):
    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def decode(self, values: pa.Array) -> Decoded:
        """The values, as text if `as` is string."""
        columns = [
            _texts(values) if pa.types.is_string(field.type) else values.cast(pa.binary()) for field in self.schema
        ]
        return Decoded(batch_of(columns, self.schema, len(values)))


class _RawEncoder(Encoder):
    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        """The one column as bytes."""
        return rows.column(0).cast(pa.binary())


def _texts(values: pa.Array) -> pa.Array:
    try:
        return values.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode(errors="replace") for value in values.to_pylist()]
        return pa.array(texts, pa.string())
