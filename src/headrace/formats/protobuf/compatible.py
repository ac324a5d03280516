"""Whether a newer descriptor of a message reads records of the older one as the same columns. Pure.

Added fields and enum values are compatible: older records do not have them. A change that would give older records
another meaning is a breach, and so is a missing column that is used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from headrace.core.encoding.descriptors import find_message
from headrace.core.errors import ProjectError
from headrace.formats.protobuf.types import is_json, is_map

if TYPE_CHECKING:
    from google.protobuf.descriptor import OneofDescriptor

_TYPES = {
    value: name.removeprefix("TYPE_").lower()
    for name, value in vars(FieldDescriptor).items()
    if name.startswith("TYPE_") and isinstance(value, int)
}


@dataclass(frozen=True)
class Breach:
    """One incompatible change. `code` is stable, `field` is dotted."""

    code: str
    field: str
    detail: str

    def __str__(self) -> str:
        return f"{self.field}: {self.detail} ({self.code})"


def breaches(old: bytes, new: bytes, message: str, used: Collection[str] | None = None) -> list[Breach]:
    """Why `new` cannot replace `old` for this message; empty when it can.

    `used` are the columns that are read, None for all: of other columns only the meaning of their bytes matters.
    """
    before = find_message(old, message)
    try:
        now = find_message(new, message)
    except ProjectError as error:
        return [Breach("message-gone", message, error.message)]
    return list(dict.fromkeys(_message(before, now, "", used, set())))


def additions(old: bytes, new: bytes, message: str) -> list[str]:
    """The added fields and enum values, as text."""
    return list(dict.fromkeys(_added(find_message(old, message), find_message(new, message), "", set())))


def _message(
    old: Descriptor, new: Descriptor, path: str, used: Collection[str] | None, seen: set[str]
) -> Iterator[Breach]:
    if old.full_name in seen:  # a message that contains itself
        return
    seen = {*seen, old.full_name}
    for field in old.fields:
        name = path + field.name
        is_used = used is None or field.name in used
        yield from _field(field, new, name, is_used, seen)
    for field in new.fields:
        if field.number not in old.fields_by_number and field.is_required:
            yield Breach("required-added", path + field.name, "is new and required, and older records lack it")


def _field(field: FieldDescriptor, new: Descriptor, name: str, is_used: bool, seen: set[str]) -> Iterator[Breach]:
    newer = new.fields_by_number.get(field.number)
    named = new.fields_by_name.get(field.name)
    if named is not None and named.number != field.number:
        yield Breach("number-changed", name, f"had the number {field.number}, and has {named.number} now")
        return
    if newer is None:
        if is_used:
            yield Breach("field-gone", name, "is gone, and is used")
        return
    changed = list(_same_bytes(field, newer, name, seen))
    if newer.name != field.name and (is_used or changed):
        code = "number-reused" if changed else "field-renamed"
        yield Breach(code, name, f"its number {field.number} is that of '{newer.name}' now")
        return
    yield from changed


def _same_bytes(old: FieldDescriptor, new: FieldDescriptor, name: str, seen: set[str]) -> Iterator[Breach]:
    """Whether the bytes of a field have the same meaning."""
    shapes = [_shape(field) for field in (old, new)]
    if shapes[0] != shapes[1]:
        yield Breach("type-changed", name, f"was {shapes[0]}, and is {shapes[1]} now")
        return
    if old.has_presence != new.has_presence or old.is_required != new.is_required:
        words = ["required" if f.is_required else "optional" if f.has_presence else "never null" for f in (old, new)]
        yield Breach("presence-changed", name, f"was {words[0]}, and is {words[1]} now")
    if _group(old.containing_oneof) != _group(new.containing_oneof):
        groups = [_group(f.containing_oneof) or "no oneof" for f in (old, new)]
        yield Breach("oneof-changed", name, f"belonged to {groups[0]}, and belongs to {groups[1]} now")
    if old.enum_type is not None and new.enum_type is not None:
        yield from _enum(old.enum_type, new.enum_type, name)
    if old.message_type is not None and new.message_type is not None:
        yield from _message(old.message_type, new.message_type, f"{name}.", None, seen)
    elif old.default_value != new.default_value and not old.is_repeated:
        yield Breach("default-changed", name, f"defaulted to {old.default_value!r}, and to {new.default_value!r} now")


def _shape(field: FieldDescriptor) -> str:
    """The wire type and column type of a field, as comparable text."""
    message = field.message_type
    kind = _TYPES[field.type] if message is None else message.full_name
    if message is not None and is_map(field):
        return f"map<{_shape(message.fields_by_name['key'])}, {_shape(message.fields_by_name['value'])}>"
    if message is not None and is_json(message):
        kind += " as JSON"
    if field.type == FieldDescriptor.TYPE_GROUP:
        kind = f"group {kind}"
    return f"repeated {kind}" if field.is_repeated else kind


def _group(oneof: OneofDescriptor | None) -> str | None:
    """The oneof of a field; the synthetic one of an `optional` field is ignored."""
    return None if oneof is None or (len(oneof.fields) == 1 and oneof.name.startswith("_")) else oneof.name


def _enum(old: EnumDescriptor, new: EnumDescriptor, name: str) -> Iterator[Breach]:
    for number, value in old.values_by_number.items():
        now = new.values_by_number.get(number)
        if now is None or now.name != value.name:
            present = "nothing" if now is None else f"'{now.name}'"
            yield Breach("enum-value-changed", name, f"{number} meant '{value.name}', and means {present} now")
    if old.is_closed != new.is_closed:
        yield Breach("type-changed", name, f"its enum {old.full_name} takes other numbers differently now")


def _added(old: Descriptor, new: Descriptor, path: str, seen: set[str]) -> Iterator[str]:
    if old.full_name in seen:
        return
    seen = {*seen, old.full_name}
    for field in new.fields:
        before = old.fields_by_name.get(field.name)
        if before is None:
            yield path + field.name
        elif before.enum_type is not None and field.enum_type is not None:
            known = before.enum_type.values_by_name
            yield from (
                f"{path}{field.name} = {value}" for value in field.enum_type.values_by_name if value not in known
            )
        elif before.message_type is not None and field.message_type is not None:
            yield from _added(before.message_type, field.message_type, f"{path}{field.name}.", seen)
