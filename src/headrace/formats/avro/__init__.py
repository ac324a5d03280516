"""`type: avro`: Avro records without a container."""

from __future__ import annotations

import io
import json
from functools import cached_property
from typing import Any, Literal

import fastavro
import pyarrow as pa
from pydantic import Field

from headrace.core.context import Context
from headrace.core.encoding.avro import AvroSchema, rows_of
from headrace.core.encoding.descriptors import read_file
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.format import Bad, Decoded, Decoder, Encoder
from headrace.formats._batches import rows_around_bad
from headrace.formats._confluent import FramedDecoder, StrippedDecoder, UnreadableSchema
from headrace.formats._framing import FramedFormat
from headrace.formats.avro.encoder import AvroEncoder, check_columns, derived_schema
from headrace.systems.schema_registry import Schemas


class AvroFormat(FramedFormat):
    """One Avro record per record, without a container; container files are read by the `files` source.

    A union with null is a nullable column; other unions and records that contain themselves are JSON strings, which can
    be read but not written. Enums and UUIDs are strings, fixed is binary, timestamps are microseconds in UTC, times of
    day are strings. With a registry each record is read with the schema it was written with and resolved to this one.

    Order: kept. Bad records: `malformed` (also bytes left over), `wrong-type`, `empty`. Without a schema file it can
    only be written: the schema is derived from the columns, each nullable. Records become Python objects in between, as
    there is no Avro library for Arrow: expect a tenth of protobuf's speed.
    """

    type: Literal["avro"] = "avro"
    schema_file: str | None = Field(
        None, description="Avro schema file (.avsc) of the project.", examples=["schemas/order.avsc"]
    )

    def record_schema(self, context: Context) -> pa.Schema:
        """All columns of the schema file."""
        return self._avro(context).arrow()

    def decoder(self, context: Context, schema: pa.Schema) -> Decoder:
        """A decoder of these columns; a column the schema does not have is refused."""
        avro = self._avro(context)
        for name in schema.names:
            if name not in avro.fields:
                hint = did_you_mean(name, avro.fields, "fields")
                raise ProjectError("unknown-column", f"'{self.schema_file}' has no field '{name}'", hint=hint)
        inner = AvroDecoder(schema, avro.parsed, avro.parsed)
        if self.framing == "plain":
            return inner
        if self.registry is None:
            return StrippedDecoder(inner, indexed=False)
        return _AvroRegistryDecoder(schema, avro.parsed, self.registry.schemas(context))

    def encoder(self, context: Context, schema: pa.Schema) -> Encoder:
        """An encoder of these columns. `unknown-column`, `missing-column` and `wrong-column-type` are refused here."""
        if self.schema_file is None:
            return self.framed(AvroEncoder(derived_schema(schema)))
        avro = self._avro(context)
        check_columns(schema, avro)
        return self.framed(AvroEncoder(avro.parsed))

    def _avro(self, context: Context) -> AvroSchema:
        if self.schema_file is None:
            raise ProjectError(
                "missing-schema", "format 'avro' needs a schema to read", hint="add schema_file: schemas/<name>.avsc"
            )
        return _parsed(read_file(context, self.schema_file, "Avro schema"), self.schema_file)


def _parsed(text: bytes, name: str) -> AvroSchema:
    try:
        return AvroSchema(json.loads(text))
    except ValueError as error:
        raise ProjectError("bad-avro-schema", f"'{name}' is not JSON: {error}", hint="an .avsc file is JSON") from error


class AvroDecoder(Decoder):
    """Decodes records of one writer's schema into the requested columns of the reader's."""

    def __init__(self, schema: pa.Schema, writer: Any, reader: Any) -> None:
        self.schema = schema
        self._writer = writer
        self._reader = reader

    def __getstate__(self) -> dict[str, Any]:
        return {"schema": self.schema, "_writer": self._writer, "_reader": self._reader}

    @cached_property
    def _wanted(self) -> Any:
        return AvroSchema(self._reader).pruned(self.schema.names)

    @cached_property
    def _converters(self) -> dict[str, Any]:
        return AvroSchema(self._reader).converters(self.schema.names)

    def decode(self, values: pa.Array) -> Decoded:
        records, positions, bad = [], [], []
        for index, value in enumerate(values.to_pylist()):
            if value is None:
                bad.append(Bad(index, "empty", "the record has no value"))
                continue
            try:
                records.append(self._read(value))
                positions.append(index)
            except Exception as error:  # for damaged bytes fastavro raises any error: EOFError, IndexError, …
                bad.append(Bad(index, "malformed", f"{type(error).__name__}: {error}"[:500]))
        return rows_around_bad(records, lambda part: rows_of(part, self.schema, self._converters), positions, bad)

    def _read(self, value: bytes) -> Any:
        stream = io.BytesIO(
            value + b"\0"
        )  # one byte more than the value: fastavro skips beyond the end without an error
        record = fastavro.schemaless_reader(stream, self._writer, self._wanted)
        if stream.tell() != len(value):
            raise ValueError(f"the record ends at byte {stream.tell()}, its value at {len(value)}")
        return record


class _AvroRegistryDecoder(FramedDecoder):
    """Decodes each record with its writer schema, resolved to the reader's."""

    def __init__(self, schema: pa.Schema, reader: Any, schemas: Schemas) -> None:
        super().__init__(schema, indexed=False)
        self._reader = reader
        self._schemas = schemas

    def decoder_for(self, schema_id: int, path: tuple[int, ...]) -> Decoder | UnreadableSchema:
        content = self._schemas.text(schema_id)
        if content is None:
            return UnreadableSchema("unknown-schema-id", f"the registry has no schema {schema_id}")
        return AvroDecoder(self.schema, _parsed(content, f"schema {schema_id}").parsed, self._reader)
