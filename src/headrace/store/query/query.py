"""Queries: a filter, an order and a page."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.core.endpoints import Endpoint
from headrace.core.errors import RequestError, did_you_mean
from headrace.store.query.conditions import And, Field, RowFilter
from headrace.store.query.cursors import Cursor
from headrace.store.query.filters import field_of, parse_filter
from headrace.store.rows.served_row import ServedRow

_KEYS = ("$filter", "$order_by", "$limit", "$skip", "$after")
_DIRECTIONS = ("asc", "desc")
_TERMS = 16
_LARGEST = 2**63 - 1
_canonical = msgspec.json.Encoder(order="sorted").encode


@dataclass(frozen=True)
class SortOrder:
    """Rows sorted by a field: nulls first and NaN last; reversed when descending."""

    field: Field
    descending: bool = False


@dataclass(frozen=True)
class StoreQuery:
    """A parsed query of an endpoint."""

    filter: RowFilter | None = None
    order: tuple[SortOrder, ...] = ()
    limit: int | None = None
    skip: int = 0
    after: Cursor | None = None
    fingerprint: bytes = b""
    """Of the caller's filter and order: a cursor is valid for these only."""
    caller_filter: RowFilter | None = None
    """The filter without the restriction of the caller's token: hints name only its columns."""
    seal: bytes | None = None


@dataclass(frozen=True)
class ResultPage:
    """Rows, and the cursor of the next page; None: this is the last page."""

    rows: list[ServedRow]
    next: str | None


def parse_query(
    document: Any,
    endpoint: Endpoint,
    *,
    page: int | None,
    default: int | None = 50,
    seal: bytes | None = None,
) -> StoreQuery:
    """Parse a query document; RequestError when it is not valid.

    `page` is the largest page and `default` the page size without `$limit`; both are None for a count. `seal` is the
    secret that encrypts cursors for callers that may not see the whole key."""
    if document is None:
        document = {}
    if not isinstance(document, dict):
        hint = 'for all rows: {}; for some: {"$filter": {"region": "EU"}, "$limit": 20}'
        raise RequestError("bad-query", "a query must be an object", hint=hint)
    for key in document:
        if key not in _KEYS:
            hint = did_you_mean(key[:60], _KEYS, "keys of a query")
            raise RequestError("bad-query", f"'{key[:60]}' is not a key of a query", hint=hint)
    condition = _condition(document.get("$filter"), endpoint)
    order = _order(document.get("$order_by", {}), endpoint)
    fingerprint = _fingerprint(document, endpoint)
    return StoreQuery(
        filter=condition,
        order=order,
        limit=_limit(document.get("$limit"), page, default),
        skip=_number("$skip", document.get("$skip")) or 0,
        after=_after(document, fingerprint, seal),
        fingerprint=fingerprint,
        caller_filter=condition,
        seal=seal,
    )


def _condition(document: Any, endpoint: Endpoint) -> RowFilter | None:
    condition = None if document is None else parse_filter(document, endpoint)
    return None if condition == And(()) else condition


def _order(document: Any, endpoint: Endpoint) -> tuple[SortOrder, ...]:
    terms = document if isinstance(document, list) and document else [document]
    order: dict[str, SortOrder] = {}
    for term in terms:
        if not isinstance(term, dict):
            raise _bad_order("$order_by must be an object of columns and directions, or a list of such objects")
        for name, direction in term.items():
            if direction not in _DIRECTIONS:
                raise _bad_order(f"the direction of '{name[:60]}' must be asc or desc")
            if name in order:
                raise _bad_order(f"$order_by names '{name[:60]}' twice")
            order[name] = SortOrder(field_of(name, endpoint), direction == "desc")
    if len(order) > _TERMS:
        raise _bad_order(f"$order_by has {len(order)} columns; at most {_TERMS} are allowed")
    return tuple(order.values())


def _bad_order(message: str) -> RequestError:
    hint = 'example: {"$order_by": {"amount": "desc", "id": "asc"}}'
    return RequestError("bad-query", message, hint=hint)


def _limit(value: Any, page: int | None, default: int | None) -> int | None:
    limit = _number("$limit", value)
    if limit is None:
        return default if page is None or default is None else min(default, page)
    if page is not None and limit > page:
        hint = f"request at most {page:,} rows, and the next page with $after"
        raise RequestError("page-too-large", f"$limit exceeds the page size of {page:,} rows", status=422, hint=hint)
    return limit


def _number(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
        raise RequestError(
            "bad-query", f"{name} must be a whole number, 0 or greater", hint=f'example: {{"{name}": 20}}'
        )
    return value


def _after(document: dict[str, Any], fingerprint: bytes, seal: bytes | None) -> Cursor | None:
    text = document.get("$after")
    if text is None:
        return None
    if not isinstance(text, str):
        raise RequestError("bad-cursor", "$after is not a cursor", hint="pass the text that the previous page returned")
    if document.get("$skip"):
        raise RequestError(
            "bad-query", "$skip and $after exclude each other", hint="$after already sets where the page begins"
        )
    return Cursor.from_text(text, fingerprint, seal)


def _fingerprint(document: dict[str, Any], endpoint: Endpoint) -> bytes:
    """A digest of what decides which rows come in which order. Both parts are validated, so their depth is bounded."""
    orders = document.get("$order_by", {})
    # the order of keys matters in $order_by, not in a filter
    order = [list(term.items()) for term in (orders if isinstance(orders, list) else [orders])]
    parts = [endpoint.name, endpoint.version, order, document.get("$filter")]
    return hashlib.blake2b(_canonical(parts), digest_size=8).digest()
