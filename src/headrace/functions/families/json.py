"""JSON documents in texts, by JSONPath: `$.a.b[0]`, `$['a']`, `$..b`, `$.a[*]`, `$.a[?@.b > 1]`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.core.encoding.python_values import python_values
from headrace.core.errors import ProjectError
from headrace.functions.function import Arrow, Function, FunctionCall
from headrace.functions.template import fill

if TYPE_CHECKING:
    import msgspec
    from jsonpath import JSONPath

# paths that Spark variants support
_SIMPLE = re.compile(r"\$(\.[A-Za-z_]\w*|\[\d+\]|\['[^'\"\\\[\]]+'\])+")
_OUTSIDE = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\[\?(?:[^\]'\"]|'[^']*'|\"[^\"]*\")*\]")


@dataclass(frozen=True)
class _Path:
    """A path, and its names and indexes if it names one place."""

    query: JSONPath
    parts: tuple[str | int, ...] | None

    def places(self, document: Any) -> list[tuple[str | int, ...]]:
        if self.parts is None:
            return [match.parts for match in self.query.finditer(document)]
        holder = _follow(document, self.parts[:-1])
        return [self.parts] if not self.parts or _has(holder, self.parts[-1]) else []


@lru_cache(maxsize=1000)
def compiled(path: str) -> _Path:
    """A compiled path; an error `invalid path` otherwise."""
    import jsonpath

    try:
        if not path or re.search(r"\s", _OUTSIDE.sub("", path)):
            raise jsonpath.JSONPathError("it is empty or has a space in it")
        found = jsonpath.compile(path)
        if not isinstance(found, jsonpath.JSONPath):
            raise jsonpath.JSONPathError("it is several paths")
    except jsonpath.JSONPathError as error:
        message = f"invalid path '{path}': {str(error).splitlines()[0]}"
        raise ProjectError("function-argument", message, hint="a path looks like $.a.b[0]") from None
    return _Path(found, tuple(_names(found)) if found.singular_query() else None)


def _check_path(call: FunctionCall) -> None:
    path = call.text(1)
    if path is not None:
        try:
            found = compiled(path)
        except ProjectError as error:
            raise call.error(error.message, error.hint) from None
        if call.function.name != "JsonQuery" and found.parts == ():
            raise call.error(f"invalid path '{path}': it names the whole document")


def _query(call: FunctionCall) -> str | None:
    _check_path(call)
    if not _SIMPLE.fullmatch(call.text(1) or ""):
        return None
    # null counts as missing; a string "null" has quotes
    template = "nullif(to_json(try_variant_get(try_parse_json(:j), :p, 'variant')), 'null')"
    return fill(template, j=call.args[0], p=call.args[1])


@cache
def _codec() -> tuple[msgspec.json.Decoder[Any], msgspec.json.Encoder]:
    """A JSON decoder and encoder that keep the digits of numbers."""
    import msgspec

    return msgspec.json.Decoder(float_hook=Decimal), msgspec.json.Encoder(decimal_format="number", enc_hook=str)


def _each(change: Callable[..., Any], json: pa.Array, paths: pa.Array, *more: pa.Array) -> pa.Array:
    """Transform each document; null for null and for invalid JSON."""
    import msgspec

    decoder, encoder = _codec()

    def one(text: str | None, path: str | None, *values: Any) -> str | None:
        if text is None or path is None:
            return None
        where = compiled(path)
        try:
            document = decoder.decode(text)
        except msgspec.DecodeError:
            return None
        result = change(document, where, *values)
        return None if result is None else encoder.encode(result).decode()

    # a map becomes an object
    columns = (python_values(column, "lossy") for column in (json, paths, *more))
    return pa.array([one(*row) for row in zip(*columns, strict=True)], pa.string())


def query(json: pa.Array, path: pa.Array) -> pa.Array:
    """The part of each document that a path names; an array if the path may name several."""

    def change(document: Any, where: _Path) -> Any:
        found = [_follow(document, parts) for parts in where.places(document)]
        if where.parts is None:
            return found
        return found[0] if found else None

    return _each(change, json, path)


def update(json: pa.Array, path: pa.Array, value: pa.Array) -> pa.Array:
    """Each document with a new value at a path; a missing key is added to its object."""

    def change(document: Any, where: _Path, new: Any) -> Any:
        for parts in where.places(document) if where.parts is None else [where.parts]:
            *way, last = _below_root(parts)
            holder = _follow(document, way)
            if isinstance(holder, dict) or _has(holder, last):
                holder[last] = new
        return document

    return _each(change, json, path, value)


def delete(json: pa.Array, path: pa.Array) -> pa.Array:
    """Each document without the parts that a path names."""

    def change(document: Any, where: _Path) -> Any:
        # from the end, so that earlier indexes stay valid
        for parts in sorted(where.places(document), key=_order, reverse=True):
            *way, last = _below_root(parts)
            holder = _follow(document, way)
            if _has(holder, last):
                del holder[last]
        return document

    return _each(change, json, path)


def _below_root(parts: tuple[str | int, ...]) -> tuple[str | int, ...]:
    if not parts:
        raise ProjectError("function-argument", "invalid path '$': it names the whole document")
    return parts


def _order(parts: tuple[str | int, ...]) -> list[tuple[int, int, str]]:
    return [(0, part, "") if isinstance(part, int) else (1, 0, part) for part in parts]


def _names(where: JSONPath) -> Iterator[str | int]:
    """The names and indexes of a path that names one place; None otherwise."""
    for segment in where.segments:
        selector: Any = segment.selectors[0]
        yield selector.name if hasattr(selector, "name") else selector.index


def _has(holder: Any, part: str | int) -> bool:
    if isinstance(holder, list):
        return isinstance(part, int) and -len(holder) <= part < len(holder)
    return isinstance(holder, dict) and part in holder


def _follow(document: Any, way: Sequence[str | int]) -> Any:
    for part in way:
        if not _has(document, part):
            return None
        document = document[part]
    return document


_NULLS = "NULL for a NULL text or path and for a text that is not JSON; an invalid path is refused."

FUNCTIONS = (
    Function(
        "JsonQuery",
        ("json STRING, path STRING -> STRING",),
        "The part of a document that a path names, as JSON: a string has quotes. A path that may name several parts "
        "gives an array of them. NULL if the part is missing or null. "
        f"{_NULLS} A literal path of plain names and indexes runs inside Spark, which sorts the keys of objects and "
        "may format numbers differently.",
        """JsonQuery('{"k1": null, "k2": "v2"}', '$.k2')""",
        '"v2"',
        _query,
        Arrow(query, "string"),
    ),
    Function(
        "JsonUpdate",
        ("json STRING, path STRING, value T -> STRING",),
        "A document with a new value at a path, or at all places that it names. A missing key is added to its object; "
        "if the object or index does not exist, nothing changes. A NULL value becomes null. "
        f"{_NULLS}",
        """JsonUpdate('{"k1": 1}', '$.k2', 'v2')""",
        '{"k1":1,"k2":"v2"}',
        _check_path,
        Arrow(update, "string"),
    ),
    Function(
        "JsonDelete",
        ("json STRING, path STRING -> STRING",),
        f"A document without the parts that a path names; unchanged if there are none. {_NULLS}",
        """JsonDelete('{"k1": 1, "k2": 2}', '$.k2')""",
        '{"k1":1}',
        _check_path,
        Arrow(delete, "string"),
    ),
)
