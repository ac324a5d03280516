"""Descriptions of expected and actual values for error messages and the reference."""

from __future__ import annotations

import json
from typing import Any

_NUMBER, _WHOLE, _MAPPING = "a number", "a whole number", "a mapping of keys to values"
_TIME = "a time such as 2026-01-31T12:00:00Z"
_TYPES = {
    "string_type": "text",
    "bool": "true or false",
    "int": _WHOLE,
    "float": _NUMBER,
    "finite_number": _NUMBER,
    "decimal": _NUMBER,
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "frozen_set": "a list",
    "dict": _MAPPING,
    "mapping": _MAPPING,
    "model": _MAPPING,
    "dataclass": _MAPPING,
    "datetime": _TIME,
    "timezone": _TIME,
    "date": "a date such as 2026-01-31",
    "time": "a time of day such as 12:30:00",
    "bytes": "text",
    "none_required": "nothing",
    "url": "a URL",
    "uuid": "a UUID",
}
_LIMITS = {
    "greater_than": "a number greater than {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number less than {lt}",
    "less_than_equal": "a number of at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "string_too_short": "text of at least {min_length} characters",
    "string_too_long": "text of at most {max_length} characters",
    "too_short": "at least {min_length} of them",
    "too_long": "at most {max_length} of them",
    "string_pattern_mismatch": "text that matches {pattern}",
    "literal_error": "{expected}",
    "enum": "{expected}",
}


_PLAIN = {"string": "text", "integer": "whole number", "boolean": "true or false", "object": "mapping"}


def describe_expected(detail: Any) -> str:
    """The expected value of a validation error."""
    kind = detail["type"]
    if kind in _LIMITS:
        return _LIMITS[kind].format(**detail["ctx"])
    if kind in ("value_error", "assertion_error"):
        return f"a value that fits ({detail['ctx']['error']})"
    for beginning, words in _TYPES.items():
        if kind == beginning or kind.startswith(f"{beginning}_"):
            return words
    return _lower(str(detail["msg"]).removeprefix("Input should be "))


def is_about_type(detail: Any) -> bool:
    """Whether the error is about the type of a value, not about the value."""
    return detail["type"] not in _LIMITS and detail["type"] not in ("value_error", "assertion_error")


def describe_value(value: Any) -> str:
    """A short description of a value in a YAML file."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case str():
            return f"'{value}'" if len(value) <= 80 else f"'{value[:77]}…'"
        case int() | float():
            return f"the number {value}"
        case list():
            return "a list"
        case dict():
            return "a mapping"
    return "something else"


def describe_type(schema: dict[str, Any]) -> str:
    """The type of a JSON schema as text, for the reference pages."""
    if "const" in schema:
        return f"`{schema['const']}`" if isinstance(schema["const"], str) else f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            words = [describe_type(part) for part in schema[key] if part.get("type") != "null"]
            return " or ".join(dict.fromkeys(words))
    match schema.get("type"):
        case "array" if "prefixItems" in schema:
            return f"list of {len(schema['prefixItems'])}: {', '.join(map(describe_type, schema['prefixItems']))}"
        case "array":
            return f"list of {describe_type(schema.get('items', {}))}"
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            return f"mapping of names to {describe_type(schema['additionalProperties'])}"
        case "string" if schema.get("format") == "date-time":
            return "time"
        case str() as plain:
            return _PLAIN.get(plain, plain)
    return "any value"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
