"""Queries in URLs: `/films?year=1999&$order_by=-rating&$limit=10` equals a query in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.core.endpoints import Endpoint
from headrace.core.errors import RequestError, did_you_mean
from headrace.serve.access.url_values import json_value

_KEYWORDS = ("$filter", "$order_by", "$limit", "$skip", "$after")


def query_of(parameters: Sequence[tuple[str, str]], endpoint: Endpoint) -> dict[str, Any]:
    """Parse URL parameters into a query. The name of a column always means the column; `limit` works as `$limit`."""
    query: dict[str, Any] = {}
    values: dict[str, list[Any]] = {}
    columns = set(endpoint.columns.names)
    for name, text in parameters:
        if name in columns:
            values.setdefault(name, []).append(json_value(text, endpoint.columns.field(name)))
            continue
        word = name if name.startswith("$") else f"${name}"
        if word not in _KEYWORDS:
            hint = did_you_mean(name, [*columns, *_KEYWORDS], "parameters")
            raise RequestError("unknown-column", f"'{endpoint.name}' has no column '{name[:60]}'", hint=hint)
        if word in query:
            raise RequestError("bad-parameter", f"{word} is given twice", hint="remove one")
        query[word] = _parameter(word, text)
    if values:
        own = {name: {"$in": several} if len(several) > 1 else {"$eq": several[0]} for name, several in values.items()}
        query["$filter"] = {"$and": [own, query["$filter"]]} if "$filter" in query else own
    return query


def _parameter(word: str, text: str) -> Any:
    match word:
        case "$limit" | "$skip":
            if not text.isascii() or not text.isdigit() or len(text) > 18:
                raise RequestError(
                    "bad-parameter", f"{word} must be a whole number, 0 or greater", hint=f"example: {word}=20"
                )
            return int(text)
        case "$filter":
            return _json(word, text)
        case "$order_by":
            return _json(word, text) if text.lstrip().startswith(("{", "[")) else _orders(text)
    return text


def _orders(text: str) -> Any:
    """Parse `-year,title`."""
    terms = [term.strip() for term in text.split(",") if term.strip()]
    return [{term.removeprefix("-"): "desc" if term.startswith("-") else "asc"} for term in terms] or {}


def _json(word: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError):
        hint = 'example: $filter={"year": {"$gt": 1999}}, percent-encoded'
        raise RequestError("bad-parameter", f"{word} is not JSON", hint=hint) from None
