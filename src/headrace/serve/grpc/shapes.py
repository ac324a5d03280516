"""How values of a column stand in a typed message, and how they come from the JSON of stored rows.

Fields are optional, so a null is a field that is not there. Lists and maps cannot say so of themselves or of what is in
them: those nulls are named by their paths in the row's last field, `nulls`.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

Convert = Callable[[Any], Any]
COMMON, TIMESTAMP = ".headrace.v1.", ".google.protobuf.Timestamp"
NULLS = 18_999
"""The number of the field that names nulls within lists and maps: columns never get so far."""
_F = FieldDescriptorProto
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_ODD = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True)
class ValueShape:
    """How values of one type stand in a message."""

    kind: int
    message: str = ""
    """The message that they are, if they are one."""
    repeated: bool = False
    write: Convert | None = None
    """From the value in a row's JSON to what a message is made of; None: as it is."""
    read: Convert | None = None
    """From the value in a message to the value as JSON has it."""
    default: Any = None
    """What stands in a list or map for a null."""
    holes: Callable[[Any, str], Iterator[str]] | None = None
    """The paths of nulls in a value; None: there cannot be any."""


def camel(name: str) -> str:
    """`daily_sales` as `DailySales`."""
    found = "".join(part[:1].upper() + part[1:] for part in _ODD.sub("_", name).split("_"))
    return found if found[:1].isalpha() else f"X{found}"


class MessageNames:
    """Names in a message: such as protobuf allows, and none twice, however it is written."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self.reserved: set[str] = set()
        """Names of other things in the same place."""

    def field(self, column: str) -> str:
        """The name of a column's field."""
        name = _ODD.sub("_", column)
        return self.take(name if name[:1].isalpha() or name[:1] == "_" else f"f_{name}")

    def take(self, wanted: str) -> str:
        """That name, or with a number behind it."""
        name, number = wanted, 2
        while _loosely(name) in self._taken or name in self.reserved:
            name, number = f"{wanted}_{number}", number + 1
        self._taken.add(_loosely(name))
        return name


def _loosely(name: str) -> str:
    # JSON names and the names of map entries are made from field names without regard to case and underscores
    return name.replace("_", "").lower()


class MessageMaker:
    """Makes one message of columns, with all messages that it needs within it."""

    def __init__(self, name: str, full: str, root: MessageMaker | None = None) -> None:
        self.proto = DescriptorProto(name=name)
        self.full = full
        self.names = MessageNames()
        self._root = root or self
        self.nested_names: MessageNames = MessageNames() if root is None else root.nested_names

    def add(self, column: str, field: str, number: int, shape: ValueShape, *, optional: bool = True) -> None:
        """A field for a column."""
        label = _F.LABEL_REPEATED if shape.repeated else _F.LABEL_OPTIONAL
        added = self.proto.field.add(name=field, number=number, label=label, type=shape.kind)
        if shape.message:
            added.type_name = shape.message
        if not (column.startswith("[") and column.endswith("]")) and column.isprintable():
            added.json_name = column  # what JSON calls it: as the column is called
        if optional and not shape.repeated:
            added.proto3_optional = True

    def close(self) -> DescriptorProto:
        """The message. What makes a field optional is a choice of its own behind all others."""
        taken = {field.name for field in self.proto.field}
        for field in self.proto.field:
            if field.proto3_optional:
                name = f"_{field.name}"
                while name in taken:
                    name = f"X{name}"
                taken.add(name)
                field.oneof_index = len(self.proto.oneof_decl)
                self.proto.oneof_decl.add(name=name)
        return self.proto

    def inner(self, wanted: str) -> MessageMaker:
        """A message within the outermost one."""
        name = self._root.nested_names.take(wanted)
        return MessageMaker(name, f"{self._root.full}.{name}", self._root)

    def keep(self, maker: MessageMaker) -> str:
        """Add an inner message; its full name."""
        self._root.proto.nested_type.append(maker.close())
        return maker.full

    def shape(self, kind: pa.DataType, field: str) -> ValueShape:
        """How a column of this type stands in this message."""
        types = pa.types
        if types.is_map(kind):
            return self._map(kind, field)
        if types.is_list(kind) or types.is_large_list(kind):
            return self._list(kind, field)
        if types.is_struct(kind) and not is_point(kind):
            return self._struct(kind, field)
        return _simple(kind)

    def _list(self, kind: pa.DataType, field: str) -> ValueShape:
        item = self._single(kind.value_type, f"{field}_item")
        return ValueShape(
            item.kind,
            item.message,
            repeated=True,
            write=_each(item),
            read=lambda values: [item.read(value) if item.read else value for value in values],
            holes=lambda value, path: _list_holes(item, value, path),
        )

    def _map(self, kind: pa.DataType, field: str) -> ValueShape:
        key = _map_key(kind.key_type)
        item = self._single(kind.item_type, f"{field}_value")
        entry = self.proto.nested_type.add(name=f"{camel(field)}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=_F.LABEL_OPTIONAL, type=key.kind)
        value = entry.field.add(name="value", number=2, label=_F.LABEL_OPTIONAL, type=item.kind)
        if item.message:
            value.type_name = item.message
        as_key, as_item = key.write or str, _or_default(item)
        return ValueShape(
            _F.TYPE_MESSAGE,
            f"{self.full}.{entry.name}",
            repeated=True,
            write=lambda values: {as_key(name): as_item(one) for name, one in values.items()},
            read=lambda values: {_text(name): item.read(one) if item.read else one for name, one in values.items()},
            holes=lambda value, path: _map_holes(item, value, path),
        )

    def _struct(self, kind: pa.DataType, field: str) -> ValueShape:
        maker = self.inner(camel(field))
        columns = [(part.name, maker.names.field(part.name), part.type) for part in kind]
        shapes = [maker.shape(inside, name) for _, name, inside in columns]
        for number, ((column, name, _), shape) in enumerate(zip(columns, shapes, strict=True), 1):
            maker.add(column, name, number, shape)
        pairs = [(column, name, shape) for (column, name, _), shape in zip(columns, shapes, strict=True)]
        return ValueShape(
            _F.TYPE_MESSAGE,
            self.keep(maker),
            write=writer(pairs),
            read=reader(pairs),
            default={},
            holes=_struct_holes(pairs),
        )

    def _single(self, kind: pa.DataType, field: str) -> ValueShape:
        """For what may not be repeated itself: a list in a list becomes a message that has it."""
        shape = self.shape(kind, field) if not _is_many(kind) else None
        if shape is not None:
            return shape
        maker = self.inner(camel(field))
        inside = maker.shape(kind, "items")
        maker.add("items", "items", 1, inside)
        write, read = inside.write, inside.read
        assert write is not None
        assert read is not None
        return ValueShape(
            _F.TYPE_MESSAGE,
            self.keep(maker),
            write=lambda value: {"items": write(value)},
            read=lambda message: read(message.items),
            default={},
            holes=inside.holes,
        )


def writer(pairs: list[tuple[str, str, ValueShape]]) -> Convert:
    """From the values of a row or struct by column to those of a message by field."""
    steps = [(column, field, shape.write) for column, field, shape in pairs]

    def write(values: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for column, field, convert in steps:
            value = values.get(column)
            if value is not None:
                found[field] = value if convert is None else convert(value)
        return found

    return write


def reader(pairs: list[tuple[str, str, ValueShape]]) -> Convert:
    """From a message to its values by column."""

    def read(message: Any) -> dict[str, Any]:
        found = {}
        for column, field, shape in pairs:
            there = shape.repeated or message.HasField(field)
            value = getattr(message, field) if there else None
            found[column] = value if value is None or shape.read is None else shape.read(value)
        return found

    return read


def is_point(kind: pa.DataType) -> bool:
    """Whether a struct is a point of the plane."""
    if not pa.types.is_struct(kind):
        return False
    return [(part.name, part.type) for part in kind] == [("x", pa.float64()), ("y", pa.float64())]


def number(value: Any) -> float:
    """A float as JSON has it: some are texts."""
    return float(value)


def json_number(value: float) -> Any:
    """The inverse of `number`."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def timestamp(text: str) -> dict[str, int]:
    """A time as google.protobuf.Timestamp has it."""
    seconds, rest = divmod((datetime.fromisoformat(text) - _EPOCH) // _MICROSECOND, 1_000_000)
    return {"seconds": seconds, "nanos": rest * 1000}


def json_timestamp(value: Any) -> str:
    """The inverse of `timestamp`; a ValueError for a time that no row can have."""
    if value.nanos % 1000 or not 0 <= value.nanos < 10**9:
        raise ValueError("a fraction finer than microseconds")
    try:
        found = _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    except OverflowError:
        raise ValueError("a time out of range") from None
    return found.isoformat().replace("+00:00", "Z")


def day(text: str) -> dict[str, int]:
    """A date in its parts."""
    year, month, of_month = text.rsplit("-", 2)
    return {"year": int(year), "month": int(month), "day": int(of_month)}


def json_day(value: Any) -> str:
    """The inverse of `day`."""
    return f"{value.year:04}-{value.month:02}-{value.day:02}"


def point(value: dict[str, Any]) -> dict[str, float]:
    """A point; a coordinate that is null is not there."""
    return {name: number(one) for name, one in value.items() if one is not None}


def json_point(value: Any) -> dict[str, Any]:
    """The inverse of `point`."""
    return {name: json_number(getattr(value, name)) if value.HasField(name) else None for name in ("x", "y")}


def binary(value: bytes) -> str:
    """Bytes as JSON has them."""
    return b64encode(value).decode()


def _simple(kind: pa.DataType) -> ValueShape:
    types = pa.types
    if types.is_boolean(kind):
        return ValueShape(_F.TYPE_BOOL, default=False)
    if types.is_integer(kind):
        return ValueShape(_integer(kind), default=0)
    if types.is_floating(kind):
        field = _F.TYPE_DOUBLE if kind == pa.float64() else _F.TYPE_FLOAT
        return ValueShape(field, write=number, read=json_number, default=0.0)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return ValueShape(_F.TYPE_BYTES, write=b64decode, read=binary, default=b"")
    if types.is_string(kind) or types.is_large_string(kind):
        return ValueShape(_F.TYPE_STRING, default="")
    return _known_message(kind)


def _known_message(kind: pa.DataType) -> ValueShape:
    types = pa.types
    if types.is_decimal(kind):
        return _message("Decimal", lambda text: {"text": text}, lambda value: value.text)
    if types.is_date32(kind):
        return _message("Date", day, json_day)
    if types.is_timestamp(kind) and kind.tz is not None:
        return ValueShape(_F.TYPE_MESSAGE, TIMESTAMP, write=timestamp, read=json_timestamp, default={})
    if types.is_timestamp(kind):
        return _message("LocalTimestamp", lambda text: {"text": text}, lambda value: value.text)
    if is_point(kind):
        return _message("Point", point, json_point)
    raise TypeError(f"values of type {kind} have no message")


def _message(name: str, write: Convert, read: Convert) -> ValueShape:
    return ValueShape(_F.TYPE_MESSAGE, f"{COMMON}{name}", write=write, read=read, default={})


def _integer(kind: pa.DataType) -> int:
    if pa.types.is_signed_integer(kind):
        return _F.TYPE_INT64 if kind == pa.int64() else _F.TYPE_INT32
    return _F.TYPE_UINT64 if kind == pa.uint64() else _F.TYPE_UINT32


def _map_key(kind: pa.DataType) -> ValueShape:
    """Protobuf knows few kinds of keys; the others are text, as they are in JSON."""
    if pa.types.is_integer(kind):
        return ValueShape(_integer(kind), write=int)
    if pa.types.is_boolean(kind):
        return ValueShape(_F.TYPE_BOOL, write=lambda text: text == "true")
    return ValueShape(_F.TYPE_STRING, write=str)


def _text(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _is_many(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _or_default(item: ValueShape) -> Convert:
    write, default = item.write, item.default
    return lambda value: default if value is None else value if write is None else write(value)


def _each(item: ValueShape) -> Convert:
    convert = _or_default(item)
    return lambda values: [convert(value) for value in values]


def _list_holes(item: ValueShape, value: Any, path: str) -> Iterator[str]:
    if value is None:
        yield path
        return
    for at, one in enumerate(value):
        yield from _hole(item, one, f"{path}[{at}]")


def _map_holes(item: ValueShape, value: Any, path: str) -> Iterator[str]:
    if value is None:
        yield path
        return
    for name, one in value.items():
        yield from _hole(item, one, f"{path}[{json.dumps(name, ensure_ascii=False)}]")


def _hole(item: ValueShape, value: Any, path: str) -> Iterator[str]:
    if value is None:
        yield path
    elif item.holes is not None:
        yield from item.holes(value, path)


def _struct_holes(pairs: list[tuple[str, str, ValueShape]]) -> Callable[[Any, str], Iterator[str]] | None:
    holed = [(column, shape.holes) for column, _, shape in pairs if shape.holes is not None]
    if not holed:
        return None

    def holes(value: Any, path: str) -> Iterator[str]:
        for column, inside in holed if value is not None else ():
            yield from inside(value.get(column), f"{path}.{column}")

    return holes
