"""Arrays of protobuf messages as bytes: select fields, filter messages. The messages are those of the protobuf formats
of the project."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import ProjectError
from headrace.core.format import Decoder
from headrace.core.schema import ddl_type
from headrace.functions.function import Arrow, Function, FunctionCall
from headrace.functions.resources import MessageCatalog, Resources
from headrace.functions.template import fill, literal

_PICK = "headrace_selectfields_"
_TIME_PARTS = {"seconds": pa.int64(), "nanos": pa.int32()}


def _cond_eq(call: FunctionCall) -> str:
    _path(call, 0)
    return fill("named_struct('field', :f, 'value', :v)", f=call.args[0], v=call.args[1])


def _filters(call: FunctionCall) -> None:
    for condition in call.args[2:]:
        if condition.call is None or condition.call.function.name != "CondEq":
            raise call.error("conditions are written as CondEq(field, value)")


def _select_fields(call: FunctionCall) -> str:
    """A separate function per message and field, since they determine the type of the result."""
    inner = call.args[0].call
    filtered = inner is not None and inner.function.name == "Filters"
    if len(call.args) == 2 and not filtered:
        raise call.error("the name of the message is missing; only after Filters it is known")
    named_by, place = (call, 1) if len(call.args) == 3 else (inner, 1)
    assert named_by is not None
    message = named_by.text(place) or ""
    path = _path(call, len(call.args) - 1)
    return f"{picker(message, path)}({call.args[0].sql})"


def _path(call: FunctionCall, index: int) -> str:
    path = call.written(index, "the field")
    if not all(part.isidentifier() for part in path.split(".")):
        raise call.error(f"'{path}' is not a field such as driver.name")
    return path


def picker(message: str, path: str) -> str:
    """The name of the function that selects this field of messages; `wanted` parses it."""
    return _PICK + f"{message}\n{path}".encode().hex()


def wanted(name: str) -> tuple[str, str] | None:
    """The message and the field of a function of this name."""
    if not name.lower().startswith(_PICK):
        return None
    message, _, path = bytes.fromhex(name[len(_PICK) :]).decode().partition("\n")
    return message, path


@dataclass
class _Field:
    """One field of messages, decoded from bytes."""

    decoder: Decoder
    path: list[str]

    def type(self) -> pa.DataType:
        kind = self.decoder.schema.field(0).type
        for name in self.path[1:]:
            if pa.types.is_timestamp(kind) and name in _TIME_PARTS:
                kind = _TIME_PARTS[name]
                continue
            index = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
            if index < 0:
                raise ProjectError("unknown-column", f"there is no single field '{'.'.join(self.path)}' in the message")
            kind = kind.field(index).type
        return kind

    def values(self, messages: pa.Array) -> pa.Array:
        """The field of each message; null for null."""
        there = pc.is_valid(messages)
        decoded = self.decoder.decode(pc.fill_null(messages.cast(pa.binary()), b""))
        if decoded.bad:
            message = f"a message is {decoded.bad[0].reason}: {decoded.bad[0].detail}"
            raise ProjectError("bad-message", message[:300])
        column = decoded.rows.column(0)
        for name in self.path[1:]:
            timestamp = pa.types.is_timestamp(column.type)
            column = _time_part(column, name) if timestamp else pc.struct_field(column, name)
        return pc.if_else(there, column, pa.scalar(None, column.type))


@dataclass
class Pick:
    """SelectFields over columns: an array of fields for each array of messages."""

    field: _Field

    def __call__(self, arrays: pa.Array, *_: pa.Array) -> pa.Array:
        lengths = pc.fill_null(pc.list_value_length(arrays), 0)
        values = self.field.values(arrays.flatten())
        return pa.ListArray.from_arrays(_offsets(lengths), values, mask=pc.is_null(arrays))


@dataclass
class Filters:
    """Filters over columns: the messages of each array that fulfil all conditions."""

    messages: MessageCatalog
    _fields: dict[tuple[str, str], _Field] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return {"messages": self.messages, "_fields": {}}

    def __call__(self, arrays: pa.Array, names: pa.Array, *conditions: pa.Array) -> pa.Array:
        lengths = pc.fill_null(pc.list_value_length(arrays), 0)
        flat = arrays.flatten()
        rows = pa.array(_rows(lengths), pa.int64())
        message = next((name for name in names.unique().to_pylist() if name), None) or self.messages.only()
        keep = pc.is_valid(flat)
        for condition in conditions:
            paths = [path for path in condition.field("field").unique().to_pylist() if path]
            if not paths:
                continue
            found = self._field(message, paths[0]).values(flat)
            keep = pc.and_(keep, pc.fill_null(_equal(found, condition.field("value").take(rows)), False))
        left = pc.take(pa.array(_rows(lengths), pa.int64()), pc.indices_nonzero(keep))
        counts = _counts(left, len(arrays))
        return pa.ListArray.from_arrays(_offsets(counts), flat.filter(keep).cast(pa.binary()), mask=pc.is_null(arrays))

    def _field(self, message: str, path: str) -> _Field:
        key = (message, path)
        if key not in self._fields:
            self._fields[key] = field_of(self.messages, message, path)
        return self._fields[key]


def field_of(messages: MessageCatalog, message: str, path: str) -> _Field:
    """A field of a message of the project; raises `unknown-message` and `unknown-column`."""
    parts = path.split(".")
    field = _Field(messages.decoder(message, parts[0]), parts)
    field.type()
    return field


def _time_part(times: pa.Array, name: str) -> pa.Array:
    """`event_timestamp.seconds`: a protobuf timestamp is a message of two numbers, and a timestamp here."""
    micros = times.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    # rounds down, also before 1970
    seconds = pc.floor(pc.divide(micros.cast(pa.float64(), safe=False), 1e6)).cast(pa.int64())
    if name == "seconds":
        return seconds
    return pc.multiply(pc.subtract(micros, pc.multiply(seconds, 1_000_000)), 1000).cast(pa.int32())


def _equal(found: pa.Array, value: pa.Array) -> pa.Array:
    try:
        return pc.equal(found, value.cast(found.type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pc.equal(found.cast(pa.string()), value.cast(pa.string()))


def _rows(lengths: pa.Array) -> Any:
    """The row of each element of flattened arrays."""
    import numpy as np

    counts = lengths.to_numpy(zero_copy_only=False)
    return np.repeat(np.arange(len(counts)), counts)


def _counts(rows: pa.Array, number: int) -> pa.Array:
    import numpy as np

    return pa.array(np.bincount(rows.to_numpy(zero_copy_only=False), minlength=number), pa.int64())


def _offsets(lengths: pa.Array) -> pa.Array:
    import numpy as np

    ends = np.cumsum(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)
    return pa.array(np.concatenate([[0], ends]).astype(np.int32))


def _built_filters(resources: Resources) -> Arrow:
    return Arrow(Filters(_messages(resources)), "array<binary>")


def pick(resources: Resources, message: str, path: str) -> Arrow:
    """SelectFields for one field of one message; the message may be empty if the project has only one."""
    messages = _messages(resources)
    found = field_of(messages, message or messages.only(), path)
    return Arrow(Pick(found), f"array<{ddl_type(found.type())}>")


def _messages(resources: Resources) -> MessageCatalog:
    if resources.messages is None:
        raise ProjectError(
            "unknown-message",
            "SelectFields and Filters need the messages of a project",
            hint="use them in a project that has a stream with format: protobuf",
        )
    return resources.messages


_WHICH = (
    "The message is a literal, one of the project's descriptors; if it is a column, as in Dagger, it means the only "
    "message of the project. Bytes that are not such a message fail the flow."
)

FUNCTIONS = (
    Function(
        "SelectFields",
        (
            "messages ARRAY<BINARY>, message STRING, field STRING -> ARRAY<T>",
            "Filters(…), field STRING -> ARRAY<T>",
        ),
        f"A field of every message of an array; nested fields are joined by dots, and a timestamp has "
        f"`seconds` and `nanos`. {_WHICH}",
        f"SelectFields(orders, {literal('shop.v1.Order')}, 'order_number')",
        "[A1, A2]",
        _select_fields,
    ),
    Function(
        "Filters",
        ("messages ARRAY<BINARY>, message STRING, … -> ARRAY<BINARY>",),
        f"The messages of an array that fulfil all conditions, which are calls of CondEq. {_WHICH}",
        f"Filters(orders, {literal('shop.v1.Order')}, CondEq('status', 'DONE'))",
        "[bytes, …]",
        _filters,
        build=_built_filters,
    ),
    Function(
        "CondEq",
        ("field STRING, value T -> condition",),
        "A condition for Filters: that a field has a value. Enums are compared by name.",
        f"Filters(orders, {literal('shop.v1.Order')}, CondEq('status', 'DONE'))",
        "[bytes, …]",
        _cond_eq,
    ),
)
