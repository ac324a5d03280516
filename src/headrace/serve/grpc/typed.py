"""The typed service of an endpoint, derived from its columns: descriptors for clients, and rows as messages.

The field number of a column is its position among the endpoint's columns, so a number keeps its meaning within a
version, whoever the caller is and whatever columns are hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Any

import msgspec
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from headrace.core.encoding.descriptors import build_pool, compile_text, files_of
from headrace.core.endpoints import Endpoint
from headrace.serve.grpc.shapes import COMMON, NULLS, MessageMaker, ValueShape, camel, reader, writer

PACKAGE = "headrace.endpoints"
COMMON_FILE = "headrace/v1/common.proto"
_OWN = ("Record", "GetRequest", "QueryResponse", "Event")
_F = FieldDescriptorProto
_decode = msgspec.json.Decoder(dict[str, Any]).decode


@lru_cache(maxsize=1)
def common_files() -> tuple[FileDescriptorProto, ...]:
    """The descriptors that do not depend on endpoints."""
    text = files("headrace.serve.grpc").joinpath("common.proto").read_text()
    return tuple(files_of(compile_text({COMMON_FILE: text}, COMMON_FILE)))


def service_name(endpoint: str) -> str:
    """The full name of an endpoint's typed service."""
    return f"{PACKAGE}.{endpoint}.{camel(endpoint)}Service"


@dataclass(frozen=True)
class Column:
    """A column as a field."""

    name: str
    field: str
    number: int
    shape: ValueShape


class Typed:
    """The typed service of one version of an endpoint. With `visible`, only these columns are described."""

    def __init__(self, endpoint: Endpoint, visible: Sequence[str] | None = None) -> None:
        self.endpoint = endpoint
        name = endpoint.name
        self._package = f"{PACKAGE}.{name}"
        self._row_name = camel(name) if camel(name) not in _OWN else f"{camel(name)}Row"
        maker = MessageMaker(self._row_name, f".{self._package}.{self._row_name}")
        self._columns = _columns(endpoint, maker, visible)
        described = {column.name for column in self._columns}
        self._key = [self._column(part) for part in endpoint.key] if described.issuperset(endpoint.key) else []
        self.file = self._file(maker)
        self._write = writer([(column.name, column.field, column.shape) for column in self._columns])
        self._holes = [(column.name, column.shape.holes) for column in self._columns if column.shape.holes is not None]
        self._nulls = maker.proto.field[-1].name

    @cached_property
    def pool(self) -> DescriptorPool:
        """All descriptors that the service needs."""
        return build_pool([*common_files(), self.file])

    @cached_property
    def record_class(self) -> type[Message]:
        """The message type of a row with its version."""
        return self._message("Record")

    @cached_property
    def key_class(self) -> type[Message]:
        """The message type of a request for one row."""
        return self._message("GetRequest")

    @cached_property
    def page_class(self) -> type[Message]:
        return self._message("QueryResponse")

    @cached_property
    def event_class(self) -> type[Message]:
        return self._message("Event")

    def row(self, json: bytes) -> dict[str, Any]:
        """A row as arguments of its message."""
        values = _decode(json)
        fields: dict[str, Any] = self._write(values)
        if self._holes:
            visible = ((name, holes) for name, holes in self._holes if name in values)
            nulls = [path for name, holes in visible for path in holes(values[name], name)]
            if nulls:
                fields[self._nulls] = nulls
        return fields

    @cached_property
    def read_key(self) -> Any:
        """Reads a request for one row: the JSON values of the key columns, by column."""
        return reader([(column.name, column.field, column.shape) for column in self._key])

    def _message(self, name: str) -> type[Message]:
        return GetMessageClass(self.pool.FindMessageTypeByName(f"{self._package}.{name}"))

    def _column(self, name: str) -> Column:
        return next(column for column in self._columns if column.name == name)

    def _file(self, maker: MessageMaker) -> FileDescriptorProto:
        name = self.endpoint.name
        row = maker.full
        file = FileDescriptorProto(
            name=f"headrace/endpoints/{name}.proto",
            package=self._package,
            syntax="proto3",
            dependency=["google/protobuf/timestamp.proto", COMMON_FILE],
        )
        file.message_type.append(maker.close())
        record = _message("Record", [("version", _F.TYPE_UINT64, ""), ("row", _F.TYPE_MESSAGE, row)])
        page = _message(
            "QueryResponse", [("records", _F.TYPE_MESSAGE, f".{self._package}.Record"), ("next", _F.TYPE_STRING, "")]
        )
        page.field[0].label = _F.LABEL_REPEATED
        event = _message(
            "Event",
            [
                ("type", _F.TYPE_ENUM, f"{COMMON}EventType"),
                ("token", _F.TYPE_STRING, ""),
                ("row", _F.TYPE_MESSAGE, row),
                ("old", _F.TYPE_MESSAGE, row),
                ("gap", _F.TYPE_MESSAGE, f"{COMMON}Gap"),
                ("version", _F.TYPE_UINT32, ""),
            ],
        )
        file.message_type.extend([record, page, event])
        if self._key:
            file.message_type.append(self._key_message())
        self._add_service(file)
        return file

    def _key_message(self) -> DescriptorProto:
        maker = MessageMaker("GetRequest", f".{self._package}.GetRequest")
        for number, column in enumerate(self._key, 1):
            shape = maker.shape(self.endpoint.columns.field(column.name).type, column.field)
            maker.add(column.name, column.field, number, shape)
        return maker.close()

    def _add_service(self, file: FileDescriptorProto) -> None:
        own = f".{self._package}."
        service = file.service.add(name=f"{camel(self.endpoint.name)}Service")
        if self._key:
            service.method.add(name="Get", input_type=f"{own}GetRequest", output_type=f"{own}Record")
        service.method.add(name="Query", input_type=f"{COMMON}Query", output_type=f"{own}QueryResponse")
        service.method.add(name="Count", input_type=f"{COMMON}Query", output_type=f"{COMMON}CountResponse")
        service.method.add(
            name="OnEvent", input_type=f"{COMMON}Subscription", output_type=f"{own}Event", server_streaming=True
        )


def _columns(endpoint: Endpoint, maker: MessageMaker, visible: Sequence[str] | None) -> list[Column]:
    """The fields of the row's message; hidden columns keep their names and numbers, but are not described."""
    fields = [(field.name, maker.names.field(field.name), field.type) for field in endpoint.columns]
    nulls = maker.names.unique("nulls")
    maker.nested_names.reserved.update(name for _, name, _ in fields)
    columns = []
    for number, (name, field, kind) in enumerate(fields, 1):
        if visible is None or name in visible:
            columns.append(Column(name, field, number, maker.shape(kind, field)))
            maker.add(name, field, number, columns[-1].shape)
    maker.add(nulls, nulls, NULLS, ValueShape(_F.TYPE_STRING, repeated=True))
    return columns


def _message(name: str, fields: Sequence[tuple[str, int, str]]) -> DescriptorProto:
    message = DescriptorProto(name=name)
    for number, (field, kind, of) in enumerate(fields, 1):
        message.field.add(name=field, number=number, label=_F.LABEL_OPTIONAL, type=kind, type_name=of or None)
    return message
