"""Arrow columns to protobuf messages, by ptars.

ptars silently omits what it cannot write, so every column is checked when the encoder is created, and cast to exactly
the type that ptars writes.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from headrace.core.encoding.descriptors import build_pool, find_message
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.format import Encoder
from headrace.core.schema import ddl_type
from headrace.formats._arrays import batch_of, rebuild
from headrace.formats.protobuf.types import columns, entry, is_json, is_map, pruned_files, single_type


class ProtobufEncoder(Encoder):
    """Encodes rows as one message. Fields without a column keep their default, nulls are not set."""

    def __init__(self, descriptor_set: bytes, message: str, schema: pa.Schema) -> None:
        self._descriptor_set = descriptor_set
        self._message = message
        self._names = schema.names
        check_columns(list(schema), self._descriptor, "")

    def __getstate__(self) -> dict[str, Any]:
        return {"_descriptor_set": self._descriptor_set, "_message": self._message, "_names": self._names}

    @cached_property
    def _descriptor(self) -> Descriptor:
        return find_message(self._descriptor_set, self._message)

    @cached_property
    def _handler(self) -> Any:
        from ptars import HandlerPool, PtarsConfig

        pruned = build_pool(pruned_files(self._descriptor, set(self._names))).FindMessageTypeByName(self._message)
        config = PtarsConfig(timestamp_unit="us", duration_unit="us", time_unit="us", enum_repr="int32")
        return HandlerPool([pruned.file], config).get_for_message(pruned)

    @cached_property
    def _wire(self) -> pa.Schema:
        return self._handler.schema()

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        """One message per row; raises ValueError for a value that the message cannot hold."""
        if not rows.num_columns:
            return pa.array([b""] * rows.num_rows, pa.binary())
        fields = self._descriptor.fields_by_name
        arrays = []
        for name, array in zip(rows.schema.names, rows.columns, strict=True):
            try:
                arrays.append(to_wire(array, fields[name], self._wire.field(name).type))
            except (pa.ArrowInvalid, ValueError) as error:
                raise ValueError(f"column '{name}' cannot be written to {self._message}.{name}: {error}") from error
        schema = pa.schema([(name, array.type) for name, array in zip(rows.schema.names, arrays, strict=True)])
        return self._handler.record_batch_to_array(batch_of(arrays, schema, rows.num_rows))


def to_wire(array: pa.Array, field: FieldDescriptor, target: pa.DataType) -> pa.Array:
    """A column as ptars writes it to a field."""
    if is_map(field):
        key, value = entry(field)
        sides = {"key": (key, target.key_type), "value": (value, target.item_type)}
        return rebuild(array, array.type, lambda part, of: _single(_full(part), *sides[of.name]))
    if field.is_repeated:
        return rebuild(array, array.type, lambda part, _: _single(_full(part), field, target.value_type))
    return _single(array, field, target)


def _full(array: pa.Array) -> pa.Array:
    if array.null_count:
        raise ValueError("null among the elements of a repeated or map field")
    return array


def _single(array: pa.Array, field: FieldDescriptor, target: pa.DataType) -> pa.Array:
    message = field.message_type
    if field.enum_type is not None:
        return _numbers(array, field.enum_type)
    if message is not None and is_json(message):
        return _parsed(array, message)
    if pa.types.is_struct(array.type):
        parts = message.fields_by_name  # type: ignore[union-attr]
        return rebuild(array, array.type, lambda part, of: to_wire(part, parts[of.name], target.field(of.name).type))
    if pa.types.is_timestamp(array.type) and array.type.tz is None:
        array = pc.assume_timezone(array, "UTC")
    if pa.types.is_duration(target):
        array = array.cast(pa.int64())
    # doubles may lose digits as floats; nothing else may lose anything
    return array if array.type == target else array.cast(target, safe=not pa.types.is_float32(target))


def _numbers(array: pa.Array, enum: EnumDescriptor) -> pa.Array:
    """Names, or the decimal text that a number without a name is read as, to numbers."""
    names = list(enum.values_by_name)
    indices = pc.index_in(array, value_set=pa.array(names, pa.string()))
    known = pa.array([enum.values_by_name[name].number for name in names], pa.int32()).take(indices)
    if known.null_count == array.null_count:
        return known
    rest = array.filter(pc.and_(known.is_null(), array.is_valid()))
    unknown = next((text for text in rest.to_pylist() if not text.lstrip("-").isdecimal()), None)
    if unknown is not None:
        raise ValueError(f"'{unknown}' is not in the enum {enum.full_name}; {did_you_mean(unknown, names, 'names')}")
    return pc.replace_with_mask(known, pc.and_(known.is_null(), array.is_valid()), rest.cast(pa.int32()))


def _parsed(array: pa.Array, message: Descriptor) -> pa.Array:
    make = GetMessageClass(message)

    def binary(text: str) -> bytes:
        try:
            return json_format.Parse(text, make()).SerializeToString()
        except json_format.ParseError as error:
            raise ValueError(f"not the JSON of {message.full_name}: {error}") from error

    return pa.array([None if text is None else binary(text) for text in array.to_pylist()], pa.binary())


def check_columns(fields: list[pa.Field], message: Descriptor, prefix: str) -> None:
    """Refuse columns without a field in the message."""
    known = {field.name: field for field in columns(message)}
    for column in fields:
        if column.name not in known:
            raise ProjectError(
                "unknown-column",
                f"message {message.full_name} has no field for the column '{prefix}{column.name}'",
                hint=did_you_mean(column.name, known, "fields"),
            )
        _check_column(column.type, known[column.name], prefix + column.name)


def _check_column(kind: pa.DataType, field: FieldDescriptor, path: str) -> None:
    if is_map(field):
        key, value = entry(field)
        _expect(pa.types.is_map(kind), kind, "map", path)
        _check_single(kind.key_type, key, f"{path}.key")
        _check_single(kind.item_type, value, f"{path}.value")
    elif field.is_repeated:
        _expect(pa.types.is_list(kind), kind, "array", path)
        _check_single(kind.value_type, field, f"{path}[]")
    else:
        _check_single(kind, field, path)


def _check_single(kind: pa.DataType, field: FieldDescriptor, path: str) -> None:
    message = field.message_type
    expected = single_type(field)
    if message is not None and pa.types.is_struct(expected):
        _expect(pa.types.is_struct(kind), kind, "struct", path)
        check_columns(list(kind), message, f"{path}.")
    else:
        _expect(_holds(kind, expected), kind, ddl_type(expected), path)


def _is_whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0))


def _holds(kind: pa.DataType, expected: pa.DataType) -> bool:
    if pa.types.is_integer(expected) or pa.types.is_decimal(expected):
        return _is_whole(kind)
    if pa.types.is_floating(expected):
        return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind))
    if pa.types.is_binary(expected) and pa.types.is_string(kind):
        return True
    return bool(kind.id == expected.id)


def _expect(fits: bool, kind: pa.DataType, expected: str, path: str) -> None:
    if not fits:
        raise ProjectError(
            "wrong-column-type",
            f"column '{path}' is {ddl_type(kind)}, but its field takes {expected}",
            hint=f"cast it in the SQL: CAST({path} AS {expected})",
        )
