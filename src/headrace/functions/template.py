"""Templates of Spark expressions with `:name` placeholders, so that an expansion reads like its result.

Names of lambda variables in templates begin with `_`, so that they do not hide columns of users.
"""

from __future__ import annotations

import re

from headrace.functions.function import Argument

_PLACE = re.compile(r"(?<!:):([a-z]\w*)")
# a call of anything but a cast
_CALL = re.compile(r"(?!(?:try_)?cast\s*\()\b[a-z_]\w*`?\s*\(", re.IGNORECASE)
_SIMPLE = re.compile(r"[\w.]+|'[^'\\]*'")


def fill(template: str, /, **values: Argument | str | float) -> str:
    """The template with these values. A costly value that is used often, or for each element, is computed once."""
    texts = {name: _text(value) for name, value in values.items()}
    places = [(found[1], found.start()) for found in _PLACE.finditer(template)]
    inside = template.find("->")
    held = [name for name, text in texts.items() if _CALL.search(text) and _is_repeated(name, places, inside)]

    def value(found: re.Match[str]) -> str:
        if found[1] in held:
            return "_held" if len(held) == 1 else f"_held._{found[1]}"
        return texts[found[1]]

    body = _PLACE.sub(value, template)
    if not held:
        return body
    kept = texts[held[0]] if len(held) == 1 else _struct({f"_{name}": texts[name] for name in held})
    return f"element_at(transform(array({kept}), _held -> {body}), 1)"


def literal(text: str) -> str:
    """A string literal of Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _text(value: Argument | str | float) -> str:
    text = value.sql if isinstance(value, Argument) else str(value)
    return text if _SIMPLE.fullmatch(text) else f"({text})"


def _is_repeated(name: str, places: list[tuple[str, int]], inside: int) -> bool:
    mine = [place for found, place in places if found == name]
    return len(mine) > 1 or (inside >= 0 and any(place > inside for place in mine))


def _struct(parts: dict[str, str]) -> str:
    return f"named_struct({', '.join(f'{literal(name)}, {text}' for name, text in parts.items())})"
