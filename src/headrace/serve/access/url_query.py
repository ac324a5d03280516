"""Queries in addresses: `/films?year=1999&$order_by=-rating&$limit=10` means the same as a query in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.core.endpoints import Endpoint
from headrace.core.errors import RequestError, did_you_mean
from headrace.serve.access.url_values import json_value

_WORDS = ("$filter", "$order_by", "$limit", "$skip", "$after")


def query_of(parameters: Sequence[tuple[str, str]], endpoint: Endpoint) -> dict[str, Any]:
    """The query that parameters mean. A column's own name always means the column; `limit` alone does for `$limit`."""
    found: dict[str, Any] = {}
    values: dict[str, list[Any]] = {}
    columns = set(endpoint.columns.names)
    for name, text in parameters:
        if name in columns:
            values.setdefault(name, []).append(json_value(text, endpoint.columns.field(name)))
            continue
        word = name if name.startswith("$") else f"${name}"
        if word not in _WORDS:
            hint = did_you_mean(name, [*columns, *_WORDS], "parameters")
            raise RequestError("unknown-column", f"there is no column '{name[:60]}' in '{endpoint.name}'", hint=hint)
        if word in found:
            raise RequestError("bad-parameter", f"{word} is there twice", hint="leave one out")
        found[word] = _word(word, text)
    if values:
        own = {name: {"$in": given} if len(given) > 1 else {"$eq": given[0]} for name, given in values.items()}
        found["$filter"] = {"$and": [own, found["$filter"]]} if "$filter" in found else own
    return found


def _word(word: str, text: str) -> Any:
    match word:
        case "$limit" | "$skip":
            if not text.isascii() or not text.isdigit() or len(text) > 18:
                raise RequestError("bad-parameter", f"{word} is a whole number, 0 or greater", hint=f"as in {word}=20")
            return int(text)
        case "$filter":
            return _json(word, text)
        case "$order_by":
            return _json(word, text) if text.lstrip().startswith(("{", "[")) else _orders(text)
    return text


def _orders(text: str) -> Any:
    """`-year,title`, as a query has it."""
    terms = [one.strip() for one in text.split(",") if one.strip()]
    return [{one.removeprefix("-"): "desc" if one.startswith("-") else "asc"} for one in terms] or {}


def _json(word: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError):
        hint = 'as in $filter={"year": {"$gt": 1999}}, percent-encoded'
        raise RequestError("bad-parameter", f"{word} is not JSON", hint=hint) from None
