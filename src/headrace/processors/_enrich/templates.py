"""Templates of texts, filled with values of columns so that a value cannot change the structure of the text.

`{column}` stands for a column's value; a dotted name is a field of a struct. In a URL a value is percent-encoded, in
JSON it is written as JSON, in a header it has no line breaks. In SQL values are bound as parameters.
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
# in JSON a quote or a brace follows a brace, so a bare name in braces is a placeholder
_JSON_HOLE = re.compile(r'\\.|"|\{([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\}', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_URL_LITERAL = "%/?&=:+,;@!$'()*~-._[]"

Escape = Callable[[Any], str]


class JsonText(str):
    """The JSON text of a nested value."""

    __slots__ = ()


@dataclass(frozen=True)
class Placeholder:
    """A place for a column."""

    column: str
    escape: Escape


Parts = tuple[str | Placeholder, ...]


@dataclass(frozen=True)
class Text:
    """A template that is filled with the values of a key."""

    parts: tuple[str | tuple[int, Escape], ...]

    @staticmethod
    def of(parts: Iterable[str | Placeholder], columns: Sequence[str]) -> Text:
        return Text(
            tuple(part if isinstance(part, str) else (columns.index(part.column), part.escape) for part in parts)
        )

    def filled(self, values: Sequence[Any]) -> str:
        """The text for one key; an UnfitValueError names a value that does not fit."""
        return "".join([part if isinstance(part, str) else part[1](values[part[0]]) for part in self.parts])


def parts_of(text: str, escape: Escape, literal: Callable[[str], str] = lambda text: text) -> Parts:
    """The literal texts and placeholders of a template; a ValueError says what is wrong with it."""
    parts: list[str | Placeholder] = []
    position, plain = 0, ""
    for match in _HOLE.finditer(text):
        plain += text[position : match.start()]
        position = match.end()
        if match[0] in ("{{", "}}"):
            plain += match[0][0]
        elif match[1] is None:
            raise ValueError(f"there is a single '{match[0]}': write {{column}}, and {{{{ or }}}} for a brace")
        else:
            parts += [literal(plain)] if plain else []
            parts.append(Placeholder(match[1].strip(), escape))
            plain = ""
    plain += text[position:]
    return (*parts, literal(plain)) if plain else tuple(parts)


def url_parts(text: str, escape: Escape) -> Parts:
    """The same for a part of a URL: characters that no URL may contain are percent-encoded."""
    return parts_of(text, escape, lambda plain: quote(plain, safe=_URL_LITERAL))


def json_parts(text: str) -> Parts:
    """The same for JSON. Between quotes a value becomes part of the string, elsewhere a JSON value."""
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
    """A valid value for a placeholder in JSON."""
    return "x" if hole.escape is in_json_text else "null"


def columns_of(*templates: Iterable[str | Placeholder]) -> tuple[str, ...]:
    """The columns that templates use, each once."""
    holes = (part for parts in templates for part in parts if isinstance(part, Placeholder))
    return tuple(dict.fromkeys(hole.column for hole in holes))


def plain(value: Any) -> str:
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
    """A value in the query of a URL: it cannot end the query or begin another parameter."""
    return quote(plain(value).encode(), safe="")


def in_path(value: Any) -> str:
    """A value in the path of a URL. It must not be empty, which would change the path."""
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
    return json.dumps(plain(value), ensure_ascii=False)[1:-1]
