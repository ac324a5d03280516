"""`type: json`: JSON objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from headrace.core.context import Context
from headrace.core.encoding.descriptors import read_file
from headrace.core.format import Decoder, Encoder
from headrace.core.schema import from_ddl, to_ddl
from headrace.formats._confluent import HEADER, StrippedDecoder
from headrace.formats._framing import FramedFormat
from headrace.formats.json.decoder import JsonDecoder
from headrace.formats.json.encoder import JsonEncoder
from headrace.formats.json.infer import infer_schema
from headrace.formats.json.schema import is_required, plain, read_json_schema

if TYPE_CHECKING:
    from pyspark.sql import Column

_LOCAL = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_TIMESTAMPS = {"timeZone": "UTC", "timestampFormat": f"{_LOCAL}XXX", "timestampNTZFormat": _LOCAL}


class JsonFormat(FramedFormat):
    """One JSON object per record, in UTF-8.

    The columns are given as DDL or as a JSON Schema (types, `required` and enums of strings are checked, other keywords
    are not), or inferred from a sample. Timestamps are ISO-8601 texts, UTC where they name no zone; dates are texts,
    binary is base64, decimals are exact. A number with a fraction or an exponent is not an integer. Keys without a
    column are skipped; of a repeated key the last value is used; absent keys are null.

    Order: kept. Bad records: `malformed` (syntax, encoding, nesting too deep), `wrong-type` (also integers that do not
    fit), `missing-field`, `empty`. Spark itself decodes it in real-time flows, where a bad record is a row of nulls and
    `required` and enums are not checked. Spark writes NaN as a text.
    """

    type: Literal["json"] = "json"
    columns: str | None = Field(
        None,
        description="Names and types of the columns.",
        examples=["id bigint, at timestamp, tags map<string, string>"],
    )
    json_schema: str | None = Field(
        None,
        description="JSON Schema file of the project, Draft 4 or later, with local references.",
        examples=["schemas/order.json"],
    )
    nulls: Literal["omit", "keep"] = Field(
        "omit", description="Whether written objects omit null columns or contain null."
    )

    @model_validator(mode="after")
    def _at_most_one_schema(self) -> JsonFormat:
        if self.columns is not None and self.json_schema is not None:
            raise ValueError("give `columns` or `json_schema`, not both")
        return self

    def record_schema(self, context: Context) -> pa.Schema | None:
        """The declared columns; None when they are inferred."""
        rich = self._fields(context)
        return None if rich is None else pa.schema([(field.name, plain(field.type)) for field in rich])

    def infer(self, sample: Sequence[bytes]) -> pa.Schema:
        """The union of the columns of the sampled records."""
        return infer_schema([value[HEADER:] for value in sample] if self.framing == "confluent" else sample)

    def decoder(self, context: Context, schema: pa.Schema) -> Decoder:
        """A decoder of these columns. Required keys must be present even if they are not requested."""
        rich = {field.name: field for field in self._fields(context) or ()}
        fields = [
            rich[field.name] if field.name in rich and plain(rich[field.name].type) == field.type else field
            for field in schema
        ]
        required = {name for name, field in rich.items() if is_required(field)} - set(schema.names)
        inner = JsonDecoder(schema, fields, required)
        return inner if self.framing == "plain" else StrippedDecoder(inner, indexed=False)

    def encoder(self, context: Context, schema: pa.Schema) -> Encoder:
        return self.framed(JsonEncoder(schema, self.nulls))

    def native_decode(self, value: Column, schema: pa.Schema) -> Column:
        """Spark's from_json."""
        from pyspark.sql import functions as F

        body = value if self.framing == "plain" else F.substring(value, HEADER + 1, 2**31 - 1)
        return F.from_json(body.cast("string"), to_ddl(schema), {"timeZone": "UTC", "mode": "PERMISSIVE"})

    def native_encode(self, row: Column) -> Column:
        """Spark's to_json, with microseconds and in UTC."""
        from pyspark.sql import functions as F

        ignore = "true" if self.nulls == "omit" else "false"
        text = F.to_json(row, {**_TIMESTAMPS, "ignoreNullFields": ignore}).cast("binary")
        return text if self.framing == "plain" else F.concat(F.lit(self.header()), text)

    def _fields(self, context: Context) -> pa.Schema | None:
        if self.columns is not None:
            return from_ddl(self.columns)
        if self.json_schema is None:
            return None
        return read_json_schema(read_file(context, self.json_schema, "JSON Schema"), self.json_schema)
