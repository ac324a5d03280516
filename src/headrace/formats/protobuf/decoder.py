"""Protobuf messages to Arrow columns, by ptars."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from headrace.core.encoding.descriptors import build_pool, find_message
from headrace.core.format import Bad, Decoded, Decoder, bisect
from headrace.formats._arrays import batch_of, is_nested, rebuild
from headrace.formats._batches import nulls, set_aside
from headrace.formats.protobuf.types import entry, is_json, is_map, pruned_files

# 0001-01-01 to 9999-12-31: the range of google.protobuf.Timestamp and Spark; ptars clamps values beyond 64 bits
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999


class OutOfRangeError(ValueError):
    """A timestamp before the year 1 or after the year 9999."""


class ProtobufDecoder(Decoder):
    """Decodes the requested columns of one message; other fields are skipped as unknown ones."""

    def __init__(self, descriptor_set: bytes, message: str, schema: pa.Schema, *, strict: bool = False) -> None:
        self.schema = schema
        self._strict = strict
        self._descriptor_set = descriptor_set
        self._message = message

    def __getstate__(self) -> dict[str, Any]:
        names = ("schema", "_strict", "_descriptor_set", "_message")
        return {name: self.__dict__[name] for name in names}

    @cached_property
    def _descriptor(self) -> Descriptor:
        return find_message(self._descriptor_set, self._message)

    @cached_property
    def _pruned(self) -> Descriptor:
        return build_pool(pruned_files(self._descriptor, set(self.schema.names))).FindMessageTypeByName(self._message)

    @cached_property
    def _handler(self) -> Any:
        from ptars import HandlerPool, PtarsConfig

        config = PtarsConfig(timestamp_unit="us", duration_unit="us", time_unit="us", enum_repr="string")
        return HandlerPool([self._pruned.file], config).get_for_message(self._pruned)

    def decode(self, values: pa.Array) -> Decoded:
        """Decode binary values. An empty value is a message of defaults; a null is bad."""
        decode = self._decode_strictly if self._strict else self._decode
        return set_aside(values.cast(pa.binary()), nulls(values), decode)

    def _decode_strictly(self, values: pa.Array) -> Decoded:
        bad = [Bad(index, "malformed", detail) for index, detail in self._refused(values)]
        return set_aside(values, bad, self._decode)

    def _refused(self, values: pa.Array) -> list[tuple[int, str]]:
        """The records that the protobuf library cannot parse: slower than ptars, but exact."""
        parse, refused = GetMessageClass(self._pruned).FromString, []
        for index, value in enumerate(values.to_pylist()):
            try:
                parse(value)
            except DecodeError as error:
                refused.append((index, str(error)[:500]))
        return refused

    def _decode(self, values: pa.Array) -> Decoded:
        try:
            return Decoded(self._rows(values))
        except (ValueError, DecodeError):
            return self._decode_around_bad(values)

    def _decode_around_bad(self, values: pa.Array) -> Decoded:
        """Find suspect records quickly with a second parser, then decide each with ptars."""
        bad = [record for index, _ in self._refused(values) if (record := self._try(values, index))]
        try:
            return set_aside(values, bad, lambda rest: Decoded(self._rows(rest)))
        except (ValueError, DecodeError):  # the two parsers disagree, or a value is out of range
            return bisect(values, self._rows, _reason)

    def _try(self, values: pa.Array, index: int) -> Bad | None:
        try:
            self._rows(values.slice(index, 1))
        except (ValueError, DecodeError) as error:
            return Bad(index, _reason(error), str(error)[:500])
        return None

    def _rows(self, values: pa.Array) -> pa.RecordBatch:
        try:
            wire = self._handler.array_to_record_batch(values)
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            # lengths beyond 64 bits make ptars panic; Rust unwinds safely, but Python sees a BaseException
            raise ValueError(f"the lengths inside the record are invalid: {error}") from None
        fields = self._descriptor.fields_by_name
        columns = [from_wire(wire.column(field.name), fields[field.name], field.type) for field in self.schema]
        return batch_of(columns, self.schema, len(values))


def _reason(error: Exception) -> str:
    return "out-of-range" if isinstance(error, OutOfRangeError) else "malformed"


def from_wire(array: pa.Array, field: FieldDescriptor, target: pa.DataType) -> pa.Array:
    """A field as decoded by ptars, converted to its column type."""
    if is_map(field):
        key, value = entry(field)
        parts = {"key": key, "value": value}
        return rebuild(array, target, lambda part, of: _single(part, parts[of.name], of.type))
    if field.is_repeated:
        return rebuild(array, target, lambda part, of: _single(part, field, of.type))
    return _single(array, field, target)


def _single(array: pa.Array, field: FieldDescriptor, target: pa.DataType) -> pa.Array:
    message = field.message_type
    if message is not None and is_json(message):
        return _json_strings(array, message)
    if pa.types.is_timestamp(target):
        return _checked(array)
    if message is not None and is_nested(target):
        return rebuild(array, target, lambda part, of: from_wire(part, message.fields_by_name[of.name], of.type))
    return array if array.type == target else array.cast(target)


def _checked(array: pa.Array) -> pa.Array:
    bounds = pc.min_max(array.cast(pa.int64())).as_py()
    if bounds["min"] is not None and (bounds["min"] < _FIRST or bounds["max"] > _LAST):
        raise OutOfRangeError("a timestamp is not between the years 1 and 9999")
    return array


def _json_strings(array: pa.Array, message: Descriptor) -> pa.Array:
    parse = GetMessageClass(message).FromString

    def text(value: bytes) -> str:
        try:
            return json_format.MessageToJson(parse(value), indent=None, preserving_proto_field_name=True)
        except (json_format.Error, RecursionError) as error:  # NaN has no JSON; neither has an unset Value
            raise ValueError(str(error)) from error

    return pa.array([None if value is None else text(value) for value in array.to_pylist()], pa.string())
