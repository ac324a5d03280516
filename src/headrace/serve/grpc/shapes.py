"""Maps column types to protobuf fields, and converts values between the JSON of stored rows and messages.

Fields are optional, so a null is an absent field. Lists and maps cannot represent their own null or nulls within them:
the last field of the row, `nulls`, lists the paths of those nulls.
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
"""The number of the field with the paths of nulls: columns never reach it."""
_F = FieldDescriptorProto
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_ODD = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True)
class ValueShape:
    """How values of one type are represented in a message."""

    kind: int
    message: str = ""
    """The name of the message type, if it is one."""
    repeated: bool = False
    write: Convert | None = None
    """Converts a JSON value to arguments of a message; None: unchanged."""
    read: Convert | None = None
    """Converts a value of a message to a JSON value."""
    default: Any = None
    """The value that represents a null in a list or map."""
    holes: Callable[[Any, str], Iterator[str]] | None = None
    """Yields the paths of nulls in a value; None: it cannot contain any."""


def camel(name: str) -> str:
    """`daily_sales` as `DailySales`."""
    joined = "".join(part[:1].upper() + part[1:] for part in _ODD.sub("_", name).split("_"))
    return joined if joined[:1].isalpha() else f"X{joined}"


class MessageNames:
    """Unique names in a message that protobuf allows; case and underscores do not distinguish names."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self.reserved: set[str] = set()
        """Names of other things in the same scope."""

    def field(self, column: str) -> str:
        name = _ODD.sub("_", column)
        return self.unique(name if name[:1].isalpha() or name[:1] == "_" else f"f_{name}")

    def unique(self, base: str) -> str:
        """The name, with a number if it is already used."""
        name, number = base, 2
        while _loosely(name) in self._used or name in self.reserved:
            name, number = f"{base}_{number}", number + 1
        self._used.add(_loosely(name))
        return name


def _loosely(name: str) -> str:
    # protobuf derives JSON names and names of map entries from field names, ignoring case and underscores
    return name.replace("_", "").lower()


class MessageMaker:
    """Builds one message type from columns, with its nested types."""

    def __init__(self, name: str, full: str, root: MessageMaker | None = None) -> None:
        self.proto = DescriptorProto(name=name)
        self.full = full
        self.names = MessageNames()
        self._root = root or self
        self.nested_names: MessageNames = MessageNames() if root is None else root.nested_names

    def add(self, column: str, field: str, number: int, shape: ValueShape, *, optional: bool = True) -> None:
        label = _F.LABEL_REPEATED if shape.repeated else _F.LABEL_OPTIONAL
        added = self.proto.field.add(name=field, number=number, label=label, type=shape.kind)
        if shape.message:
            added.type_name = shape.message
        if not (column.startswith("[") and column.endswith("]")) and column.isprintable():
            added.json_name = column  # JSON uses the name of the column
        if optional and not shape.repeated:
            added.proto3_optional = True

    def close(self) -> DescriptorProto:
        """The message type. The synthetic oneofs of optional fields must come after all others."""
        used = {field.name for field in self.proto.field}
        for field in self.proto.field:
            if field.proto3_optional:
                name = f"_{field.name}"
                while name in used:
                    name = f"X{name}"
                used.add(name)
                field.oneof_index = len(self.proto.oneof_decl)
                self.proto.oneof_decl.add(name=name)
        return self.proto

    def inner(self, base: str) -> MessageMaker:
        """A message type nested in the outermost one."""
        name = self._root.nested_names.unique(base)
        return MessageMaker(name, f"{self._root.full}.{name}", self._root)

    def keep(self, maker: MessageMaker) -> str:
        """Add a nested message type; returns its full name."""
        self._root.proto.nested_type.append(maker.close())
        return maker.full

    def shape(self, kind: pa.DataType, field: str) -> ValueShape:
        """The representation of a column of this type."""
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
            write=lambda values: {as_key(name): as_item(value) for name, value in values.items()},
            read=lambda values: {
                _text(name): item.read(value) if item.read else value for name, value in values.items()
            },
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
        """For values that cannot be repeated: a list in a list becomes a message with that list."""
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
    """Converts the values of a row or struct, by column, to those of a message, by field."""
    steps = [(column, field, shape.write) for column, field, shape in pairs]

    def write(values: dict[str, Any]) -> dict[str, Any]:
        fields = {}
        for column, field, convert in steps:
            value = values.get(column)
            if value is not None:
                fields[field] = value if convert is None else convert(value)
        return fields

    return write


def reader(pairs: list[tuple[str, str, ValueShape]]) -> Convert:
    """Converts a message to its values by column."""

    def read(message: Any) -> dict[str, Any]:
        values = {}
        for column, field, shape in pairs:
            present = shape.repeated or message.HasField(field)
            value = getattr(message, field) if present else None
            values[column] = value if value is None or shape.read is None else shape.read(value)
        return values

    return read


def is_point(kind: pa.DataType) -> bool:
    """Whether a struct is a point (x, y)."""
    if not pa.types.is_struct(kind):
        return False
    return [(part.name, part.type) for part in kind] == [("x", pa.float64()), ("y", pa.float64())]


def number(value: Any) -> float:
    """A float from its JSON value, which can be a string."""
    return float(value)


def json_number(value: float) -> Any:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def timestamp(text: str) -> dict[str, int]:
    """A time as fields of google.protobuf.Timestamp."""
    seconds, rest = divmod((datetime.fromisoformat(text) - _EPOCH) // _MICROSECOND, 1_000_000)
    return {"seconds": seconds, "nanos": rest * 1000}


def json_timestamp(value: Any) -> str:
    """The inverse of `timestamp`; ValueError for a time that no row can have."""
    if value.nanos % 1000 or not 0 <= value.nanos < 10**9:
        raise ValueError("the fraction is finer than microseconds")
    try:
        time = _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    except OverflowError:
        raise ValueError("the time is out of range") from None
    return time.isoformat().replace("+00:00", "Z")


def day(text: str) -> dict[str, int]:
    """A date as year, month and day."""
    year, month, of_month = text.rsplit("-", 2)
    return {"year": int(year), "month": int(month), "day": int(of_month)}


def json_day(value: Any) -> str:
    return f"{value.year:04}-{value.month:02}-{value.day:02}"


def point(value: dict[str, Any]) -> dict[str, float]:
    """A point; a null coordinate is absent."""
    return {name: number(coordinate) for name, coordinate in value.items() if coordinate is not None}


def json_point(value: Any) -> dict[str, Any]:
    return {name: json_number(getattr(value, name)) if value.HasField(name) else None for name in ("x", "y")}


def binary(value: bytes) -> str:
    """Bytes as a JSON value."""
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
    raise TypeError(f"values of type {kind} have no message type")


def _message(name: str, write: Convert, read: Convert) -> ValueShape:
    return ValueShape(_F.TYPE_MESSAGE, f"{COMMON}{name}", write=write, read=read, default={})


def _integer(kind: pa.DataType) -> int:
    if pa.types.is_signed_integer(kind):
        return _F.TYPE_INT64 if kind == pa.int64() else _F.TYPE_INT32
    return _F.TYPE_UINT64 if kind == pa.uint64() else _F.TYPE_UINT32


def _map_key(kind: pa.DataType) -> ValueShape:
    """Protobuf supports few key types; the others are strings, as in JSON."""
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
    for at, element in enumerate(value):
        yield from _hole(item, element, f"{path}[{at}]")


def _map_holes(item: ValueShape, value: Any, path: str) -> Iterator[str]:
    if value is None:
        yield path
        return
    for name, element in value.items():
        yield from _hole(item, element, f"{path}[{json.dumps(name, ensure_ascii=False)}]")


def _hole(item: ValueShape, value: Any, path: str) -> Iterator[str]:
    if value is None:
        yield path
    elif item.holes is not None:
        yield from item.holes(value, path)


def _struct_holes(pairs: list[tuple[str, str, ValueShape]]) -> Callable[[Any, str], Iterator[str]] | None:
    with_holes = [(column, shape.holes) for column, _, shape in pairs if shape.holes is not None]
    if not with_holes:
        return None

    def holes(value: Any, path: str) -> Iterator[str]:
        for column, inside in with_holes if value is not None else ():
            yield from inside(value.get(column), f"{path}.{column}")

    return holes
