"""Adds the row as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import pyarrow as pa
from pydantic import Field, PrivateAttr, model_validator

from headrace.core.encoding.descriptors import compile_protos, find_message, read_descriptor_sets
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.processor import PlanContext, Processor, StepContext, require
from headrace.core.schema import quoted
from headrace.processors._steps.columns import with_type

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from pyspark.sql import Column, DataFrame


class JsonPayload(Processor):
    """Adds a column with the row, or some of its columns, as a JSON text.

    Times are ISO texts, bytes are base64, and null values are left out. With `message` the text is the JSON of that
    protobuf message: the fields of the message that the row has, under their JSON names (`orderNumber`), 64-bit numbers
    as texts, bytes in base64, times in UTC with a Z. Native: no Python per row. Order and number of rows stay.
    """

    type: Literal["json_payload"] = "json_payload"
    column: str = Field("payload", min_length=1, description="The column.", examples=["payload"])
    columns: list[str] | None = Field(
        None, description="The columns to put into it. Default: all, or those the message has.", examples=[["id", "at"]]
    )
    nulls: bool = Field(False, description="Whether null values are written as null. Not with `message`.")
    message: str | None = Field(
        None, description="Full name of a protobuf message whose JSON the text is.", examples=["shop.v1.Order"]
    )
    descriptors: str | list[str] | None = Field(
        None, description="Descriptor set file(s) with the message.", examples=["schemas/shop.desc"]
    )
    proto: str | list[str] | None = Field(
        None,
        description=".proto file(s) with the message, instead of descriptor sets.",
        examples=["schemas/shop.proto"],
    )

    realtime: ClassVar[bool] = True
    _descriptors: bytes | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _consistent(self) -> JsonPayload:
        origins = (self.descriptors is not None) + (self.proto is not None)
        if origins != (self.message is not None):
            raise ValueError("'message' needs one of 'descriptors' and 'proto', and they need it")
        if self.message is not None and self.nulls:
            raise ValueError("the JSON of a message has no nulls")
        return self

    @property
    def label(self) -> str:
        of = self.message or (", ".join(self.columns) if self.columns else "all columns")
        return f"json_payload {self.column} of {of}"

    def bound(self, project: PlanContext) -> JsonPayload:
        if self.message is None:
            return self
        bound = self.model_copy()
        if self.descriptors is not None:
            bound._descriptors = read_descriptor_sets(project.context, _listed(self.descriptors))
        else:
            bound._descriptors = compile_protos(project.context, _listed(self.proto or []), [])
        bound._described()
        return bound

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        columns = self.columns
        if columns is None and self.message is not None:
            columns = [field.name for field in self._described().fields]
        if wanted is None or columns is None:
            return None
        return wanted - {self.column} | frozenset(columns)

    def output(self, schema: pa.Schema) -> pa.Schema:
        require(schema, self.columns or (), "json_payload")
        if self.message is not None:
            self._fields(schema.names)
        return with_type(schema, self.column, pa.string())

    def apply(self, rows: DataFrame, at: StepContext) -> DataFrame:
        from pyspark.sql import functions as F

        if self.message is not None:
            parts = [
                _json_value(F.col(quoted(field.name)), field).alias(field.json_name)
                for field in self._fields(rows.columns)
            ]
        else:
            names = self.columns or [name for name in rows.columns if name != self.column]
            parts = [F.col(quoted(name)) for name in names]
        options = {"ignoreNullFields": str(not self.nulls).lower()}
        return rows.withColumn(self.column, F.to_json(F.struct(*parts), options))

    def _described(self) -> Descriptor:
        assert self._descriptors is not None, "a step is bound before it is used"
        assert self.message is not None
        return find_message(self._descriptors, self.message)

    def _fields(self, names: list[str]) -> list[FieldDescriptor]:
        """The fields of the message that the row has, or those in `columns`."""
        fields = {field.name: field for field in self._described().fields}
        for name in self.columns or ():
            if name not in fields:
                message = f"message '{self.message}' has no field '{name}'"
                raise ProjectError("unknown-field", message, hint=did_you_mean(name, fields, "its fields"))
        chosen = [fields[name] for name in self.columns or names if name in fields and name != self.column]
        if not chosen:
            message = f"none of the columns is a field of message '{self.message}'"
            raise ProjectError("unknown-field", message, hint=f"its fields: {', '.join(sorted(fields))}")
        return chosen


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _json_value(value: Column, field: FieldDescriptor) -> Column:
    """A value as in the JSON form of protobuf."""
    from pyspark.sql import functions as F

    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        of = message.fields_by_name["value"]
        keys = F.transform(F.map_keys(value), lambda key: key.cast("string"))
        return F.map_from_arrays(keys, F.transform(F.map_values(value), lambda item: _json_single(item, of)))
    if field.is_repeated:
        return F.transform(value, lambda item: _json_single(item, field))
    return _json_single(value, field)


def _json_single(value: Column, field: FieldDescriptor) -> Column:
    from pyspark.sql import functions as F

    message = field.message_type
    if message is not None:
        if message.full_name == "google.protobuf.Timestamp":
            return F.date_format(F.to_utc_timestamp(value, F.current_timezone()), "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")
        if message.file.package == "google.protobuf":
            return value  # wrappers are plain values; structs are texts already
        parts = [_json_value(value.getField(part.name), part).alias(part.json_name) for part in message.fields]
        return F.when(value.isNotNull(), F.struct(*parts))
    if field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
        return value.cast("string")
    return F.base64(value) if field.type == field.TYPE_BYTES else value
