"""Texts with columns in them, filled with values so that no value can be taken for anything else.

`{column}` stands for a column's value; a dotted name is a field of a struct. In a URL a value is percent-encoded, in
JSON it is written as JSON, in a header it has no line breaks. In SQL nothing is filled in: values are bound.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from headrace.core.encoding.json_values import UnfitValueError

_HOLE = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")
# in JSON a brace is followed by a quote or by nothing, so a bare name in braces is a hole
_JSON_HOLE = re.compile(r'\\.|"|\{([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\}', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_URL_LITERAL = "%/?&=:+,;@!$'()*~-._[]"

Escape = Callable[[Any], str]


class JsonText(str):
    """A nested value, which is JSON already."""

    __slots__ = ()


@dataclass(frozen=True)
class Placeholder:
    """A place for a column."""

    column: str
    escape: Escape


Parts = tuple[str | Placeholder, ...]


@dataclass(frozen=True)
class Text:
    """A template whose columns have become places in the values of a key."""

    parts: tuple[str | tuple[int, Escape], ...]

    @staticmethod
    def of(parts: Iterable[str | Placeholder], columns: Sequence[str]) -> Text:
        """With the columns a key is made of."""
        return Text(
            tuple(part if isinstance(part, str) else (columns.index(part.column), part.escape) for part in parts)
        )

    def filled(self, values: Sequence[Any]) -> str:
        """The text for one key; an UnfitValueError says which value does not go there."""
        return "".join([part if isinstance(part, str) else part[1](values[part[0]]) for part in self.parts])


def parts_of(text: str, escape: Escape, literal: Callable[[str], str] = lambda text: text) -> Parts:
    """The literal texts and holes of a template; a ValueError says what is wrong with it."""
    found: list[str | Placeholder] = []
    position, plain = 0, ""
    for match in _HOLE.finditer(text):
        plain += text[position : match.start()]
        position = match.end()
        if match[0] in ("{{", "}}"):
            plain += match[0][0]
        elif match[1] is None:
            raise ValueError(f"there is a single '{match[0]}': write {{column}}, and {{{{ or }}}} for a brace")
        else:
            found += [literal(plain)] if plain else []
            found.append(Placeholder(match[1].strip(), escape))
            plain = ""
    plain += text[position:]
    return (*found, literal(plain)) if plain else tuple(found)


def url_parts(text: str, escape: Escape) -> Parts:
    """Those of a part of a URL; what is written there stays, but for what no URL may hold."""
    return parts_of(text, escape, lambda plain: quote(plain, safe=_URL_LITERAL))


def json_parts(text: str) -> Parts:
    """Those of a JSON text. Between quotes a value is part of the text there, elsewhere a JSON value of its own."""
    found: list[str | Placeholder] = []
    position, inside = 0, False
    for match in _JSON_HOLE.finditer(text):
        if match[0] == '"':
            inside = not inside
        elif match[1] is not None:
            found += [text[position : match.start()], Placeholder(match[1], in_json_text if inside else as_json)]
            position = match.end()
    example = "".join(part if isinstance(part, str) else sample(part) for part in [*found, text[position:]])
    try:
        json.loads(example)
    except ValueError as error:
        raise ValueError(f"not JSON when it is filled ({error}): {example[:200]}") from None
    return tuple(part for part in [*found, text[position:]] if part != "")


def sample(hole: Placeholder) -> str:
    """What may stand in a place of a JSON text."""
    return "x" if hole.escape is in_json_text else "null"


def columns_of(*templates: Iterable[str | Placeholder]) -> tuple[str, ...]:
    """The columns that templates use, each once."""
    holes = (part for parts in templates for part in parts if isinstance(part, Placeholder))
    return tuple(dict.fromkeys(hole.column for hole in holes))


def plain(value: Any) -> str:
    """A value as text."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
    return str(value)


def in_query(value: Any) -> str:
    """A value in the query of a URL: nothing in it ends it or begins another."""
    return quote(plain(value).encode(), safe="")


def in_path(value: Any) -> str:
    """A value in the path of a URL. Without one the path would be another."""
    text = in_query(value)
    if not text:
        raise UnfitValueError("an empty value makes another path")
    return text


def in_header(value: Any) -> str:
    """A value in a header, which is one line."""
    text = plain(value)
    if _CONTROL.search(text):
        raise UnfitValueError("a header has no line breaks or control characters")
    return text


def as_json(value: Any) -> str:
    """A value as JSON."""
    match value:
        case JsonText():
            return value
        case float() if not math.isfinite(value):
            raise UnfitValueError(f"JSON has no {value}")
        case bool() | int() | float():
            return json.dumps(value)
        case Decimal():
            return format(value, "f")
    return json.dumps(plain(value), ensure_ascii=False)


def in_json_text(value: Any) -> str:
    """A value inside a JSON text."""
    return json.dumps(plain(value), ensure_ascii=False)[1:-1]
