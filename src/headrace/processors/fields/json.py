"""Reads fields of JSON objects as texts, without parsing the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import msgspec

from headrace.processors._steps.json_text import NotJsonError, Path, on_one_line, read_object

Texts = Sequence[bytes | None]

_QUOTE = ord('"')
_NOTHING = msgspec.Raw(b"null")


@dataclass
class _Node:
    """The fields to read of an object, and the objects in it that have such fields."""

    leaves: dict[str, int] = field(default_factory=dict)
    inner: dict[str, _Node] = field(default_factory=dict)

    def shape(self) -> type[msgspec.Struct]:
        """A type with only these fields: msgspec skips the rest."""
        below = [node.shape() for node in self.inner.values()]
        kinds: list[tuple[Any, Any]] = [(msgspec.Raw, _NOTHING)] * len(self.leaves) + [(one, one()) for one in below]
        members = [(f"m{number}", *kind) for number, kind in enumerate(kinds)]
        names = {f"m{number}": name for number, name in enumerate([*self.leaves, *self.inner])}
        return msgspec.defstruct("Wanted", members, rename=names, frozen=True, gc=False)

    def places(self) -> list[tuple[tuple[str, ...], int]]:
        """The attribute path of each field in the shape, and its place among the paths."""
        own = [((f"m{number}",), place) for number, place in enumerate(self.leaves.values())]
        return own + [
            ((f"m{number}", *names), place)
            for number, node in enumerate(self.inner.values(), len(self.leaves))
            for names, place in node.places()
        ]


def reader(paths: Sequence[Path]) -> Callable[[bytes], Texts | None]:
    """A function that reads the fields of a document in the order of their paths; None if it is not an object.

    A string is unescaped, any other value keeps its JSON text; null counts as missing. The last one of duplicate names
    counts.
    """
    root = _Node()
    # a field that is read both as a whole and in parts takes two steps
    whole = {path for path in paths for other in paths if path != other and other[: len(path)] == path}
    direct = [(place, path) for place, path in enumerate(paths) if not any(path[:n] in whole for n in range(len(path)))]
    for place, path in direct:
        node = root
        for name in path[:-1]:
            node = node.inner.setdefault(name, _Node())
        node.leaves.setdefault(path[-1], place)
    reached = [(attrgetter(".".join(names)), place) for names, place in root.places()]
    others = [(place, path) for place, path in enumerate(paths) if place not in {place for _, place in reached}]
    decoder = msgspec.json.Decoder(root.shape())

    def read(text: bytes) -> Texts | None:
        values: list[bytes | None] = [None] * len(paths)
        rest = others
        try:
            document = decoder.decode(text)
            for get, place in reached:
                values[place] = _text(bytes(get(document)))
        except (msgspec.ValidationError, RecursionError):
            # a value on one path is not an object, which does not affect the other fields
            rest = list(enumerate(paths))
        except msgspec.DecodeError:
            return None
        if rest:
            try:
                members = read_object(text)
            except NotJsonError:
                return None
            for place, path in rest:
                values[place] = _found(members, path)
        return values

    return read


def _found(members: dict[str, Any], path: Path) -> bytes | None:
    for name in path[:-1]:
        try:
            members = read_object(bytes(members[name]))
        except (KeyError, NotJsonError):
            return None
    return _text(bytes(members[path[-1]])) if path[-1] in members else None


def _text(raw: bytes) -> bytes | None:
    if raw == b"null":
        return None
    if raw[0] != _QUOTE:
        return on_one_line(raw)
    # most strings have no escapes
    return raw[1:-1] if b"\\" not in raw else msgspec.json.decode(raw, type=str).encode(errors="replace")
