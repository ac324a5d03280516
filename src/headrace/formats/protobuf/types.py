"""Protobuf fields as columns, and the descriptors with which ptars decodes exactly the requested columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from headrace.core.schema import TIMESTAMP

WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}

_WELL_KNOWN = {
    "google.protobuf.Timestamp": TIMESTAMP,
    "google.protobuf.Duration": pa.int64(),
    "google.type.Date": pa.date32(),
    "google.type.TimeOfDay": pa.string(),
}

_SCALARS = {
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}


def message_schema(message: Descriptor) -> pa.Schema:
    """All columns of a message. Groups are left out: ptars cannot read them."""
    return pa.schema([(field.name, column_type(field)) for field in columns(message)])


def columns(message: Descriptor) -> Iterator[FieldDescriptor]:
    """The fields of a message that can be columns."""
    return (field for field in message.fields if field.type != FieldDescriptor.TYPE_GROUP)


def column_type(field: FieldDescriptor) -> pa.DataType:
    """The Arrow type of a field: a map, an array or a single value."""
    if is_map(field):
        key, value = entry(field)
        return pa.map_(single_type(key), single_type(value))
    return pa.list_(single_type(field)) if field.is_repeated else single_type(field)


def single_type(field: FieldDescriptor) -> pa.DataType:
    """The Arrow type of one value of a field."""
    message = field.message_type
    if message is None:
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string()
        return _SCALARS[field.cpp_type]
    if message.full_name in _WELL_KNOWN:
        return _WELL_KNOWN[message.full_name]
    if message.full_name in WRAPPERS:
        return single_type(message.fields_by_name["value"])
    if is_json(message):
        return pa.string()
    return pa.struct([(part.name, column_type(part)) for part in columns(message)])


def is_map(field: FieldDescriptor) -> bool:
    """Whether a field is a map, which descriptors show as a repeated message."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def entry(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor]:
    """The key and the value of a map field."""
    message = field.message_type
    if message is None:
        raise TypeError(f"{field.full_name} is not a map")
    return message.fields_by_name["key"], message.fields_by_name["value"]


@cache
def is_json(message: Descriptor) -> bool:
    """Whether a message is a JSON string as a column: it contains itself, as Struct does, or nothing."""
    if message.GetOptions().map_entry:
        return False
    return not any(True for _ in columns(message)) or message.full_name in _reachable(message)


def _reachable(message: Descriptor) -> set[str]:
    reachable: set[str] = set()
    waiting = [message]
    while waiting:
        for field in waiting.pop().fields:
            part = field.message_type
            if part is not None and part.full_name not in reachable:
                reachable.add(part.full_name)
                waiting.append(part)
    return reachable


def pruned_files(message: Descriptor, fields: Collection[str]) -> list[FileDescriptorProto]:
    """The files of the message, reduced to the requested fields; messages that become JSON are bytes.

    A message that contains itself is never decoded as such, so nothing else refers to the reduced message.
    """
    parts = {message.full_name: message}
    for field in message.fields:
        if field.name in fields and field.message_type is not None and not is_json(field.message_type):
            parts[field.message_type.full_name] = field.message_type
            names = _reachable(field.message_type)
            parts.update((name, message.file.pool.FindMessageTypeByName(name)) for name in names)
    files: list[FileDescriptorProto] = []
    for file in _files(message):
        copy = FileDescriptorProto()
        file.CopyToProto(copy)
        for name, proto in _messages(copy):
            if name == message.full_name:
                _keep_fields(proto, fields)
            if name in parts:
                _json_as_bytes(proto, parts[name], implicit_presence=copy.syntax == "proto3")
        files.append(copy)
    return files


def _files(message: Descriptor) -> list[FileDescriptor]:
    ordered: list[FileDescriptor] = []

    def add(file: FileDescriptor) -> None:
        for dependency in file.dependencies:
            add(dependency)
        if file not in ordered:
            ordered.append(file)

    add(message.file)
    return ordered


def _messages(file: FileDescriptorProto) -> Iterator[tuple[str, DescriptorProto]]:
    def walk(prefix: str, messages: Collection[DescriptorProto]) -> Iterator[tuple[str, DescriptorProto]]:
        for message in messages:
            yield prefix + message.name, message
            yield from walk(f"{prefix}{message.name}.", message.nested_type)

    return walk(f"{file.package}." if file.package else "", file.message_type)


def _keep_fields(proto: DescriptorProto, names: Collection[str]) -> None:
    kept = [field for field in proto.field if field.name in names]
    used = sorted({field.oneof_index for field in kept if field.HasField("oneof_index")})
    oneofs = [proto.oneof_decl[index] for index in used]
    for field in kept:
        if field.HasField("oneof_index"):
            field.oneof_index = used.index(field.oneof_index)
    fields = [FieldDescriptorProto.FromString(field.SerializeToString()) for field in kept]
    declared = [type(oneof).FromString(oneof.SerializeToString()) for oneof in oneofs]
    del proto.field[:], proto.oneof_decl[:]
    proto.field.extend(fields)
    proto.oneof_decl.extend(declared)


def _json_as_bytes(proto: DescriptorProto, message: Descriptor, *, implicit_presence: bool) -> None:
    for field in proto.field:
        part = message.fields_by_name[field.name].message_type
        if part is None or field.type != FieldDescriptorProto.TYPE_MESSAGE or not is_json(part):
            continue
        field.ClearField("type_name")
        field.type = FieldDescriptorProto.TYPE_BYTES
        single = field.label == FieldDescriptorProto.LABEL_OPTIONAL and not proto.options.map_entry
        if implicit_presence and single and not field.HasField("oneof_index"):  # bytes cannot be absent, a message can
            field.proto3_optional = True
            field.oneof_index = len(proto.oneof_decl)
            proto.oneof_decl.add(name=f"_{field.name}")
