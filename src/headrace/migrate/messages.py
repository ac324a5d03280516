"""Protobuf messages behind the Java classes that Dagger names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.core.errors import ProjectError, did_you_mean

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

    from headrace.migrate.draft import Draft


def protobuf(draft: Draft, java_class: str, key: str) -> dict[str, Any]:
    """A protobuf format for a Java class."""
    found = message_of(draft, java_class)
    if found is None:
        draft.note("check", key, f"'{java_class}' is taken for the full name of the message, without descriptors")
    return {"type": "protobuf", "message": found.full_name if found else java_class, "descriptors": draft.schemas}


def message_of(draft: Draft, java_class: str) -> Descriptor | None:
    """The message of a Java class, when a descriptor set is at hand."""
    if draft.descriptors is None:
        return None
    from headrace.core.encoding.descriptors import find_message

    names = dict(_names(draft.descriptors))
    wanted = java_class.replace("$", ".")
    if wanted not in names:
        raise ProjectError(
            "unknown-message",
            f"the descriptor set has no message for '{java_class}'",
            hint=did_you_mean(wanted, names, "messages"),
        )
    return find_message(draft.descriptors, names[wanted])


def field_name(message: Descriptor, number: str) -> str:
    """The name of a field that is known by its number."""
    known = {str(field.number): field.name for field in message.fields}
    if number not in known:
        raise ProjectError(
            "unknown-column",
            f"message {message.full_name} has no field number {number}",
            hint="fields: " + ", ".join(f"{n} {name}" for n, name in known.items()),
        )
    return known[number]


def _names(descriptor_set: bytes) -> Iterator[tuple[str, str]]:
    """Every name a message may go by in Java, and its own."""
    from headrace.core.encoding.descriptors import files_of, message_names

    for file in files_of(descriptor_set):
        java = file.options.java_package or file.package
        outer = file.options.java_outer_classname or _outer(file.name)
        for full in message_names(file):
            inner = full.removeprefix(f"{file.package}.") if file.package else full
            yield full, full
            yield f"{java}.{inner}", full
            yield f"{java}.{outer}.{inner}", full


def _outer(file: str) -> str:
    """The class that protoc makes of a file's name."""
    return "".join(word[:1].upper() + word[1:] for word in file.rpartition("/")[2].removesuffix(".proto").split("_"))
