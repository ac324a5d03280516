"""JSON texts whose parts stay as they are written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_ANY = msgspec.json.Decoder(msgspec.Raw)
_ENCODER = msgspec.json.Encoder(decimal_format="number")
# what is no number, strings as a whole, and then one; nothing is tried twice, and it must begin outside of a string
_NUMBER = re.compile(
    r'(?:[^"0-9-]++|"(?:[^"\\]++|\\.)*+")*+(-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+)', re.DOTALL
)
_NULL = msgspec.Raw(b"null")
_SEPARATOR = re.compile(r"(?<!\\)\.")

Path = tuple[str, ...]


class NotJsonError(ValueError):
    """A text that is no JSON, or none of the kind that is wanted."""


def path_of(text: str) -> Path:
    """The names of a dotted path; `\\.` is a dot within a name. A ValueError for one that is empty."""
    names = tuple(name.replace("\\.", ".") for name in _SEPARATOR.split(text))
    if "" in names:
        raise ValueError(f"'{text}' is no path: names are joined by single dots")
    return names


def utf8_texts(column: pa.Array) -> list[bytes | None]:
    """The texts of a column, as bytes. What is not UTF-8 in one is replaced: it must not stop the others."""
    texts: list[bytes | None] = column.cast(pa.binary()).to_pylist()
    try:
        (column if pa.types.is_string(column.type) else column.cast(pa.string())).validate(full=True)
    except pa.ArrowInvalid:
        return [None if text is None else text.decode(errors="replace").encode() for text in texts]
    return texts


def read_object(text: str | bytes) -> dict[str, Any]:
    """The members of an object, each as its text; of a name that is there twice the last one."""
    try:
        return _OBJECT.decode(text)
    except msgspec.ValidationError:
        raise NotJsonError("it is JSON, but no object") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise NotJsonError(str(error)) from None


def read_any(text: str) -> msgspec.Raw:
    """A text that is to be part of another."""
    try:
        return _ANY.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise NotJsonError(str(error)) from None


def written(value: Any) -> bytes:
    """A value, in which texts may be parts, as JSON on one line."""
    return on_one_line(_ENCODER.encode(value))


def on_one_line(text: bytes) -> bytes:
    """JSON without line breaks, which are only ever between its tokens: strings have them escaped."""
    return text.translate(None, b"\r\n") if b"\n" in text or b"\r" in text else text


def elements(members: dict[str, Any], path: Path) -> list[msgspec.Raw] | None:
    """The elements of the array at a path, each as its text; None when nothing, or null, is there."""
    for name in path[:-1]:
        if members.get(name, _NULL) == _NULL:
            return None
        if not _is_object(members[name]):
            raise NotJsonError(f"'{name}' is no object")
        members = _inside(members, name)
    part = members.get(path[-1], _NULL)
    if part == _NULL:
        return None
    try:
        return _ARRAY.decode(part)
    except msgspec.ValidationError:
        raise NotJsonError(f"'{path[-1]}' is no array") from None


def put(members: dict[str, Any], path: Path, value: Any) -> None:
    """Set what is at a path. Objects on the way are made, also where something else stands."""
    opened(members, path[:-1])[path[-1]] = value


def opened(members: dict[str, Any], path: Path) -> dict[str, Any]:
    """The object at a path; it is made, also where something else stands."""
    for name in path:
        members = _inside(members, name)
    return members


def remove(members: dict[str, Any], path: Path) -> None:
    """Take away what is at a path, if it is there."""
    for name in path[:-1]:
        if name not in members or not _is_object(members[name]):
            return
        members = _inside(members, name)
    members.pop(path[-1], None)


def _is_object(part: Any) -> bool:
    return isinstance(part, dict) or (isinstance(part, msgspec.Raw) and bytes(part).startswith(b"{"))


def _inside(members: dict[str, Any], name: str) -> dict[str, Any]:
    part: Any = members.get(name)
    if isinstance(part, dict):
        return part
    made: dict[str, Any] = _OBJECT.decode(part) if _is_object(part) else {}
    members[name] = made
    return made


def with_doubles(text: str) -> str:
    """The text with every number as Java writes a double. What is no JSON stays so."""
    parts: list[str] = []
    at = 0
    while found := _NUMBER.match(text, at):
        parts += text[at : found.start(1)], java_double(float(found[1]), found[1])
        at = found.end()
    return "".join(parts) + text[at:]


def java_double(value: float, beyond: str = "") -> str:
    """As `Double.toString` has it; one that is beyond a double's range as given."""
    size = abs(value)
    if 1e-3 <= size < 1e7 or not size:
        return repr(value)
    if size == float("inf"):
        return beyond
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    return ("-" if sign else "") + _scientific(digits, int(exponent))


def _scientific(digits: Sequence[int], exponent: int) -> str:
    first, *others = map(str, digits)
    return f"{first}.{''.join(others).rstrip('0') or '0'}E{exponent + len(others)}"
