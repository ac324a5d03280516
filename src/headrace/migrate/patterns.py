"""Converts Java format strings to templates: `/drivers/%s` with `driver_id` becomes `/drivers/{driver_id}`."""

from __future__ import annotations

import re

from headrace.core.errors import ProjectError

_PLACEHOLDER = re.compile(r"%(?:(\d+)\$)?[-#+ 0,(]*\d*(?:\.\d+)?([a-zA-Z%])")


def json_template(pattern: str, variables: str, key: str) -> str:
    """A template of JSON. Its braces are unchanged; single quotes, which Dagger accepts, become double quotes."""
    text = _single_braces(template(pattern, variables, key))
    return text.replace("'", '"') if '"' not in text else text


def template(pattern: str, variables: str, key: str) -> str:
    """The pattern with columns for its placeholders. Other braces are doubled."""
    columns = [name.strip() for name in variables.split(",") if name.strip()]
    pieces, position, number = [], 0, 0
    for match in _PLACEHOLDER.finditer(pattern):
        pieces.append(_double_braces(pattern[position : match.start()]))
        position = match.end()
        if match[2] in "%n":
            pieces.append("%" if match[2] == "%" else "\n")
            continue
        index = int(match[1]) - 1 if match[1] else number
        number += 0 if match[1] else 1
        if index >= len(columns):
            raise ProjectError(
                "migrate-unreadable",
                f"{key}: '{pattern}' has more placeholders than the {len(columns)} variables '{variables}'",
                hint="list a column for every %s",
            )
        pieces.append(f"{{{columns[index]}}}")
    return "".join(pieces) + _double_braces(pattern[position:])


def parameters(pattern: str, variables: str, key: str) -> str:
    """A SQL query with parameters `:column`. A text such as '%s-a' becomes a concatenation."""
    text = template(pattern, variables, key)
    quoted = re.sub(r"'((?:[^']|'')*)'", lambda match: _concatenated(match[1]), text)
    return _single_braces(re.sub(r"(?<!\{)\{([^{}]+)\}(?!\})", lambda match: _parameter(match[1]), quoted))


def _concatenated(text: str) -> str:
    """A quoted text with columns as a concatenation."""
    pieces = re.split(r"(?<!\{)\{([^{}]+)\}(?!\})", text)
    operands = [f"'{piece}'" if number % 2 == 0 else _parameter(piece) for number, piece in enumerate(pieces)]
    return " || ".join(operand for operand in operands if operand != "''") or "''"


def _parameter(column: str) -> str:
    return f":{column}" if column.isidentifier() else f':"{column}"'


def _single_braces(text: str) -> str:
    return text.replace("{{", "{").replace("}}", "}")


def _double_braces(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
