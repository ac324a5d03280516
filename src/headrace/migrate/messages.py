"""Finds the protobuf messages of Java classes in Dagger's settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.core.encoding.descriptors import files_of, find_message, message_names
from headrace.core.errors import ProjectError, did_you_mean

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

    from headrace.migrate.draft import Draft


def protobuf(draft: Draft, java_class: str, key: str) -> dict[str, Any]:
    message = message_of(draft, java_class)
    if message is None:
        draft.note("check", key, f"without descriptors '{java_class}' is assumed to be the full name of the message")
    name = message.full_name if message else java_class
    return {"type": "protobuf", "message": name, "descriptors": draft.schemas}


def message_of(draft: Draft, java_class: str) -> Descriptor | None:
    """The message of a Java class; None without a descriptor set."""
    if draft.descriptors is None:
        return None
    names = dict(_names(draft.descriptors))
    name = java_class.replace("$", ".")
    if name not in names:
        raise ProjectError(
            "unknown-message",
            f"the descriptor set has no message for '{java_class}'",
            hint=did_you_mean(name, names, "messages"),
        )
    return find_message(draft.descriptors, names[name])


def field_name(message: Descriptor, number: str) -> str:
    known = {str(field.number): field.name for field in message.fields}
    if number not in known:
        raise ProjectError(
            "unknown-column",
            f"message {message.full_name} has no field number {number}",
            hint="fields: " + ", ".join(f"{n} {name}" for n, name in known.items()),
        )
    return known[number]


def _names(descriptor_set: bytes) -> Iterator[tuple[str, str]]:
    """Every Java name of each message, with its full name."""
    for file in files_of(descriptor_set):
        java = file.options.java_package or file.package
        outer = file.options.java_outer_classname or _outer(file.name)
        for full in message_names(file):
            inner = full.removeprefix(f"{file.package}.") if file.package else full
            yield full, full
            yield f"{java}.{inner}", full
            yield f"{java}.{outer}.{inner}", full


def _outer(file: str) -> str:
    """The class name that protoc derives from a file name."""
    return "".join(word[:1].upper() + word[1:] for word in file.rpartition("/")[2].removesuffix(".proto").split("_"))
