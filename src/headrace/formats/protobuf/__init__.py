"""`type: protobuf`: protobuf messages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal

import pyarrow as pa
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from pydantic import Field, PrivateAttr, field_validator, model_validator

from headrace.core.context import Context
from headrace.core.encoding.descriptors import (
    build_pool,
    compile_protos,
    compile_text,
    files_of,
    find_message,
    index_path,
    message_at,
    read_descriptor_sets,
)
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.format import Bad, Decoded, Decoder, Encoder, Format, Offer
from headrace.formats._confluent import FramedDecoder, StrippedDecoder, UnreadableSchema
from headrace.formats._framing import FramedFormat
from headrace.formats.protobuf.compatible import additions, breaches
from headrace.formats.protobuf.decoder import ProtobufDecoder
from headrace.formats.protobuf.descriptor_registry import AcceptedDescriptors, DescriptorRegistry, is_address, listed
from headrace.formats.protobuf.encoder import ProtobufEncoder
from headrace.formats.protobuf.types import message_schema
from headrace.systems.schema_registry import Schemas


class ProtobufFormat(FramedFormat):
    """One protobuf message per record.

    Enums are their names (a number without a name is its decimal text), Timestamp is timestamp, Duration is bigint in
    microseconds, uint32 is bigint, uint64 is decimal(20,0), wrappers are nullable values, and a message that contains
    itself, like google.protobuf.Struct, is a JSON string. Scalars of proto3 are never null; optional fields, members of
    a oneof and messages are null when absent. Finer than a microsecond is cut off. Groups and extensions are not read.

    Order: kept. Bad records: `malformed`, `out-of-range` (timestamps outside the years 1 to 9999), `empty` (null; an
    empty value is a message of defaults). Only requested fields are decoded, so damage inside others may go unnoticed.
    Cannot be decoded by Spark itself, so real-time flows cannot read it.

    Descriptors from a registry: the copy in the state folder is used. A running flow checks for a newer one every
    `refresh`; added fields and enum values are adopted between two batches, by a restart of the query from its
    checkpoint. In records that were read before, the new field was ignored like any unknown field: they are not read
    again. A set that would change the meaning of records, or lacks a column that is used, is refused (`schema-refused`
    in `headrace status`); the old one stays in use.
    """

    type: Literal["protobuf"] = "protobuf"
    message: str = Field(description="Full name of the message.", examples=["shop.v1.Order"], min_length=1)
    descriptors: str | list[str] | DescriptorRegistry | None = Field(
        None,
        description="Descriptor set file(s), made by protoc --include_imports, address(es), or a mapping with `url` "
        "that says how they are fetched.",
        examples=["schemas/shop.desc", "https://stencil.example/shop"],
    )
    proto: str | list[str] | None = Field(
        None, description=".proto file(s), compiled when needed.", examples=["schemas/order.proto"]
    )
    proto_path: str | list[str] = Field(
        default=[], description="Folders in which imports are looked up. Default: those of the .proto files."
    )

    strict: bool = Field(
        False,
        description="Parse every record with the protobuf library too: slower, but finds damage that the fast decoder "
        "overlooks (about one damaged record in 400: groups without an end, overlong tags).",
    )

    _offered: bytes | None = PrivateAttr(None)

    @field_validator("descriptors", mode="before")
    @classmethod
    def _addresses(cls, value: Any) -> Any:
        """Addresses alone mean a registry with default options."""
        texts = isinstance(value, str) or (isinstance(value, list) and all(isinstance(text, str) for text in value))
        if texts and is_address(value):
            return {"url": value}
        if texts and any(is_address(text) for text in listed(value)):
            raise ValueError("files and addresses cannot be mixed")
        return value

    @model_validator(mode="after")
    def _one_origin(self) -> ProtobufFormat:
        if (self.descriptors is None) == (self.proto is None):
            raise ValueError("give either `descriptors` or `proto`")
        return self

    def descriptor_set(self, context: Context) -> bytes:
        """The serialised FileDescriptorSet of the message and its dependencies."""
        if self._offered is not None:
            return self._offered
        if isinstance(self.descriptors, DescriptorRegistry):
            return self.descriptors.load(context, self.message).descriptor_set
        if self.descriptors is not None:
            return read_descriptor_sets(context, listed(self.descriptors))
        return compile_protos(context, listed(self.proto or []), listed(self.proto_path))

    def with_descriptors(self, descriptor_set: bytes) -> ProtobufFormat:
        """The same format with these descriptors instead of its own."""
        copy = self.model_copy()
        copy._offered = descriptor_set
        return copy

    @property
    def registry_key(self) -> str | None:
        """The addresses, the version and the message."""
        return self.descriptors.key(self.message) if isinstance(self.descriptors, DescriptorRegistry) else None

    @property
    def refresh_every(self) -> timedelta | None:
        """`refresh` of the registry; a fixed version is never fetched again."""
        registry = self.descriptors
        return (
            None
            if not isinstance(registry, DescriptorRegistry) or isinstance(registry.version, int)
            else registry.refresh
        )

    def offer(self, context: Context) -> Offer | None:
        """New descriptors of the registry, if the stored copy is due and they differ."""
        registry = self.descriptors
        if not isinstance(registry, DescriptorRegistry):
            return None
        stored = registry.load(context, self.message)
        if not registry.is_due(stored):
            return None
        fetched = registry.fetch(stored)
        if fetched.digest in (stored.digest, stored.refused.digest if stored.refused else None):
            # refused descriptors may have been withdrawn meanwhile
            refused = stored.refused if fetched.digest != stored.digest else None
            registry.keep(context, self.message, replace(stored, asked_at=fetched.asked_at, refused=refused))
            return None
        return _DescriptorOffer(self, registry, context, stored, fetched)

    def refusal(self, context: Context) -> str | None:
        """Why the newest descriptors of the registry were refused."""
        registry = self.descriptors
        stored = registry.kept(context, self.message) if isinstance(registry, DescriptorRegistry) else None
        return stored.refused.reason if stored is not None and stored.refused is not None else None

    def record_schema(self, context: Context) -> pa.Schema:
        """All columns of the message."""
        return message_schema(find_message(self.descriptor_set(context), self.message))

    def decoder(self, context: Context, schema: pa.Schema) -> Decoder:
        """A decoder of these columns; a column the message does not have is refused."""
        descriptor_set = self.descriptor_set(context)
        known = message_schema(find_message(descriptor_set, self.message)).names
        for name in schema.names:
            if name not in known:
                hint = did_you_mean(name, known, "fields")
                raise ProjectError("unknown-column", f"message {self.message} has no field '{name}'", hint=hint)
        inner = ProtobufDecoder(descriptor_set, self.message, schema, strict=self.strict)
        if self.framing == "plain":
            return inner
        if self.registry is None:
            return StrippedDecoder(inner, indexed=True)
        return _ProtobufRegistryDecoder(inner, self.registry.schemas(context), strict=self.strict)

    def encoder(self, context: Context, schema: pa.Schema) -> Encoder:
        """An encoder of these columns. `unknown-column` and `wrong-column-type` are refused here."""
        descriptor_set = self.descriptor_set(context)
        path = index_path(find_message(descriptor_set, self.message))
        return self.framed(ProtobufEncoder(descriptor_set, self.message, schema), path)


@dataclass(frozen=True)
class _DescriptorOffer(Offer):
    """Descriptors that a registry has now."""

    form: ProtobufFormat
    registry: DescriptorRegistry
    context: Context
    kept: AcceptedDescriptors
    found: AcceptedDescriptors

    @property
    def label(self) -> str:
        return self.registry.label

    def applied(self, form: Format) -> ProtobufFormat:
        assert isinstance(form, ProtobufFormat), "no other format has this registry"
        return form.with_descriptors(self.found.descriptor_set)

    def additions(self) -> list[str]:
        """Fields and enum values."""
        return additions(self.kept.descriptor_set, self.found.descriptor_set, self.form.message)

    def breaches(self, used: Collection[str] | None) -> list[str]:
        """The incompatible changes of the new descriptors."""
        problems = breaches(self.kept.descriptor_set, self.found.descriptor_set, self.form.message, used)
        return [str(breach) for breach in problems]

    def accept(self) -> None:
        self.registry.keep(self.context, self.form.message, self.found)

    def refuse(self, reason: str) -> None:
        """Keep the old descriptors, and store the reason."""
        self.registry.keep(self.context, self.form.message, self.kept.refusing(self.found, reason))


class _ProtobufRegistryDecoder(FramedDecoder):
    """Decodes each record with its writer's message and selects the columns by name."""

    def __init__(self, reader: ProtobufDecoder, schemas: Schemas, *, strict: bool) -> None:
        super().__init__(reader.schema, indexed=True)
        self._strict = strict
        self._reader = reader
        self._schemas = schemas

    def decoder_for(self, schema_id: int, path: tuple[int, ...]) -> Decoder | UnreadableSchema:
        """The decoder of the message at `path` of the schema with this id."""
        content = self._schemas.text(schema_id)
        if content is None:
            return UnreadableSchema("unknown-schema-id", f"the registry has no schema {schema_id}")
        descriptor_set, main = _writer_files(content, lambda: self._schemas.references(schema_id))
        writer = _message_in(descriptor_set, main, path)
        if writer is None:
            return UnreadableSchema("unknown-message", f"schema {schema_id} has no message at {list(path)}")
        return _WriterDecoder(self._reader, descriptor_set, writer, strict=self._strict)


class _WriterDecoder(Decoder):
    """Decodes with the writer's message; columns it does not have get the reader's defaults."""

    def __init__(self, reader: ProtobufDecoder, descriptor_set: bytes, writer: Descriptor, *, strict: bool) -> None:
        self.schema = reader.schema
        written = message_schema(writer)
        names = [field.name for field in self.schema if field.name in written.names]
        columns = pa.schema([written.field(name) for name in names])
        self._inner = ProtobufDecoder(descriptor_set, writer.full_name, columns, strict=strict)
        self._defaults = reader.decode(pa.array([b""], pa.binary())).rows

    def decode(self, values: pa.Array) -> Decoded:
        """Decode; a column that cannot be cast to the reader's type makes its records bad."""
        decoded = self._inner.decode(values)
        rows = decoded.rows
        first = pa.array([0] * rows.num_rows, pa.int64())
        try:
            columns = [
                rows.column(field.name).cast(field.type)
                if field.name in rows.schema.names
                else self._defaults.column(field.name).take(first)
                for field in self.schema
            ]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            bad = [Bad(i, "wrong-type", f"written with another type: {error}"[:500]) for i in range(len(values))]
            return Decoded(pa.RecordBatch.from_pylist([], self.schema), bad)
        return Decoded(pa.RecordBatch.from_arrays(columns, schema=self.schema) if columns else rows, decoded.bad)


def _writer_files(content: bytes, references: Callable[[], dict[str, str]]) -> tuple[bytes, str]:
    """The files of a schema of the registry, .proto text or a descriptor set, and the name of its main file."""
    with contextlib.suppress(DecodeError):  # text is not a descriptor set
        return content, files_of(content)[-1].name
    main = "headrace_writer.proto"
    return compile_text({**references(), main: content.decode()}, main), main


def _message_in(descriptor_set: bytes, main: str, path: Sequence[int]) -> Descriptor | None:
    return message_at(build_pool(files_of(descriptor_set)).FindFileByName(main), path)
