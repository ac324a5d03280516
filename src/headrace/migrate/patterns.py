"""Java format strings over lists of columns, as templates: `/drivers/%s` with `driver_id` is `/drivers/{driver_id}`."""

from __future__ import annotations

import re

from headrace.core.errors import ProjectError

_PLACE = re.compile(r"%(?:(\d+)\$)?[-#+ 0,(]*\d*(?:\.\d+)?([a-zA-Z%])")


def json_template(pattern: str, variables: str, key: str) -> str:
    """A pattern of JSON, whose braces stay as they are; Dagger takes single quotes there too."""
    made = _unbraced(template(pattern, variables, key))
    return made.replace("'", '"') if '"' not in made else made


def template(pattern: str, variables: str, key: str) -> str:
    """The pattern with the columns in their places. Braces that are no columns are doubled."""
    columns = [name.strip() for name in variables.split(",") if name.strip()]
    pieces, position, number = [], 0, 0
    for match in _PLACE.finditer(pattern):
        pieces.append(_braces(pattern[position : match.start()]))
        position = match.end()
        if match[2] in "%n":
            pieces.append("%" if match[2] == "%" else "\n")
            continue
        index = int(match[1]) - 1 if match[1] else number
        number += 0 if match[1] else 1
        if index >= len(columns):
            raise ProjectError(
                "migrate-unreadable",
                f"{key}: '{pattern}' has more places than the {len(columns)} variables '{variables}'",
                hint="name a column for every %s",
            )
        pieces.append(f"{{{columns[index]}}}")
    return "".join(pieces) + _braces(pattern[position:])


def parameters(pattern: str, variables: str, key: str) -> str:
    """The pattern of a SQL query with parameters `:column`; a text such as '%s-a' is put together by the database."""
    made = template(pattern, variables, key)
    quoted = re.sub(r"'((?:[^']|'')*)'", lambda match: _joined(match[1]), made)
    return _unbraced(re.sub(r"(?<!\{)\{([^{}]+)\}(?!\})", lambda match: _parameter(match[1]), quoted))


def _joined(text: str) -> str:
    """The inside of a quoted text with columns in it."""
    pieces = re.split(r"(?<!\{)\{([^{}]+)\}(?!\})", text)
    made = [f"'{piece}'" if number % 2 == 0 else _parameter(piece) for number, piece in enumerate(pieces)]
    return " || ".join(piece for piece in made if piece != "''") or "''"


def _parameter(column: str) -> str:
    return f":{column}" if column.isidentifier() else f':"{column}"'


def _unbraced(text: str) -> str:
    return text.replace("{{", "{").replace("}}", "}")


def _braces(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
