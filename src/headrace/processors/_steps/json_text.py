"""JSON documents whose unchanged parts keep their text."""

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
# skips everything but numbers, and strings as a whole, then matches a number; never backtracks, starts outside strings
_NUMBER = re.compile(
    r'(?:[^"0-9-]++|"(?:[^"\\]++|\\.)*+")*+(-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+)', re.DOTALL
)
_NULL = msgspec.Raw(b"null")
_SEPARATOR = re.compile(r"(?<!\\)\.")

Path = tuple[str, ...]


class NotJsonError(ValueError):
    """A text that is not JSON, or JSON of another kind than expected."""


def path_of(text: str) -> Path:
    """The names of a dotted path; `\\.` is a dot within a name. A ValueError for an empty name."""
    names = tuple(name.replace("\\.", ".") for name in _SEPARATOR.split(text))
    if "" in names:
        raise ValueError(f"'{text}' is not a path: names are joined by single dots")
    return names


def utf8_texts(column: pa.Array) -> list[bytes | None]:
    """The texts of a column as bytes. Invalid UTF-8 is replaced, so that one text does not fail the others."""
    texts: list[bytes | None] = column.cast(pa.binary()).to_pylist()
    try:
        (column if pa.types.is_string(column.type) else column.cast(pa.string())).validate(full=True)
    except pa.ArrowInvalid:
        return [None if text is None else text.decode(errors="replace").encode() for text in texts]
    return texts


def read_object(text: str | bytes) -> dict[str, Any]:
    """The members of an object, each as its text; the last one of duplicate names."""
    try:
        return _OBJECT.decode(text)
    except msgspec.ValidationError:
        raise NotJsonError("it is JSON, but no object") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise NotJsonError(str(error)) from None


def read_any(text: str) -> msgspec.Raw:
    """A JSON text as part of another."""
    try:
        return _ANY.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise NotJsonError(str(error)) from None


def written(value: Any) -> bytes:
    """A value, which may contain raw JSON, as JSON on one line."""
    return on_one_line(_ENCODER.encode(value))


def on_one_line(text: bytes) -> bytes:
    """JSON without line breaks, which occur only between tokens: strings escape them."""
    return text.translate(None, b"\r\n") if b"\n" in text or b"\r" in text else text


def elements(members: dict[str, Any], path: Path) -> list[msgspec.Raw] | None:
    """The elements of the array at a path, each as its text; None if it is missing or null."""
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
    """Set the value at a path. Missing objects on the path are created and replace other values."""
    opened(members, path[:-1])[path[-1]] = value


def opened(members: dict[str, Any], path: Path) -> dict[str, Any]:
    """The object at a path; created if it is missing or another value."""
    for name in path:
        members = _inside(members, name)
    return members


def remove(members: dict[str, Any], path: Path) -> None:
    """Remove the value at a path, if it exists."""
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
    inner: dict[str, Any] = _OBJECT.decode(part) if _is_object(part) else {}
    members[name] = inner
    return inner


def with_doubles(text: str) -> str:
    """The text with every number as Java formats a double. Invalid JSON stays invalid."""
    parts: list[str] = []
    at = 0
    while number := _NUMBER.match(text, at):
        parts += text[at : number.start(1)], java_double(float(number[1]), number[1])
        at = number.end()
    return "".join(parts) + text[at:]


def java_double(value: float, beyond: str = "") -> str:
    """The text of `Double.toString`; `beyond` for a number beyond the range of a double."""
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
