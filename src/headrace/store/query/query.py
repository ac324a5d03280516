"""Queries: which rows, in which order, and which part of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core.endpoints import Endpoint
from headrace.core.errors import RequestError, did_you_mean
from headrace.store.query.conditions import And, Field, RowFilter
from headrace.store.query.cursors import Cursor
from headrace.store.query.filters import field_of, parse_filter

if TYPE_CHECKING:
    from headrace.store.endpoint.reader import ServedRow

_KEYS = ("$filter", "$order_by", "$limit", "$skip", "$after")
_DIRECTIONS = ("asc", "desc")
_TERMS = 16
_LARGEST = 2**63 - 1
_canonical = msgspec.json.Encoder(order="sorted").encode


@dataclass(frozen=True)
class SortOrder:
    """Rows sorted by a field: nulls first and NaN last, or the other way round."""

    field: Field
    descending: bool = False


@dataclass(frozen=True)
class StoreQuery:
    """What a caller asks of an endpoint."""

    filter: RowFilter | None = None
    order: tuple[SortOrder, ...] = ()
    limit: int | None = None
    skip: int = 0
    after: Cursor | None = None
    fingerprint: bytes = b""
    """Of the caller's own filter and order: a cursor is good for just these."""
    asked: RowFilter | None = None
    """The caller's own filter, where `filter` is narrowed to what the caller may see: hints name its columns only."""
    seal: bytes | None = None


@dataclass(frozen=True)
class ResultPage:
    """Rows, and the cursor that the next page begins with; None: these were the last."""

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
    """The query that a document describes; a RequestError says what is wrong with it.

    `page` is the most rows that one page may have and `default` how many there are when nobody says: both None to
    count. `seal` is the secret with which cursors are made unreadable to callers who may not see the whole key."""
    if document is None:
        document = {}
    if not isinstance(document, dict):
        hint = 'for all rows: {}; for some: {"$filter": {"region": "EU"}, "$limit": 20}'
        raise RequestError("bad-query", "a query is an object", hint=hint)
    for key in document:
        if key not in _KEYS:
            hint = did_you_mean(key[:60], _KEYS, "keys of a query")
            raise RequestError("bad-query", f"there is no '{key[:60]}' in a query", hint=hint)
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
        asked=condition,
        seal=seal,
    )


def _condition(document: Any, endpoint: Endpoint) -> RowFilter | None:
    condition = None if document is None else parse_filter(document, endpoint)
    return None if condition == And(()) else condition


def _order(document: Any, endpoint: Endpoint) -> tuple[SortOrder, ...]:
    terms = document if isinstance(document, list) and document else [document]
    found: dict[str, SortOrder] = {}
    for term in terms:
        if not isinstance(term, dict):
            raise _bad_order("$order_by is an object of columns and directions, or a list of such")
        for name, direction in term.items():
            if direction not in _DIRECTIONS:
                raise _bad_order(f"'{name[:60]}' is to be sorted neither asc nor desc")
            if name in found:
                raise _bad_order(f"'{name[:60]}' stands twice in $order_by")
            found[name] = SortOrder(field_of(name, endpoint), direction == "desc")
    if len(found) > _TERMS:
        raise _bad_order(f"$order_by has {len(found)} columns; {_TERMS} are allowed")
    return tuple(found.values())


def _bad_order(message: str) -> RequestError:
    hint = 'as in {"$order_by": {"amount": "desc", "id": "asc"}}'
    return RequestError("bad-query", message, hint=hint)


def _limit(given: Any, page: int | None, default: int | None) -> int | None:
    limit = _number("$limit", given)
    if limit is None:
        return default if page is None or default is None else min(default, page)
    if page is not None and limit > page:
        hint = f"ask for {page:,} or fewer, and for the next ones with $after"
        raise RequestError("page-too-large", f"$limit is more than the {page:,} rows of a page", status=422, hint=hint)
    return limit


def _number(name: str, given: Any) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= _LARGEST:
        raise RequestError("bad-query", f"{name} is a whole number, 0 or greater", hint=f'as in {{"{name}": 20}}')
    return given


def _after(document: dict[str, Any], fingerprint: bytes, seal: bytes | None) -> Cursor | None:
    text = document.get("$after")
    if text is None:
        return None
    if not isinstance(text, str):
        raise RequestError("bad-cursor", "$after is not a cursor", hint="hand back the text that the page before gave")
    if document.get("$skip"):
        raise RequestError(
            "bad-query", "$skip and $after exclude each other", hint="$after already says where to begin"
        )
    return Cursor.from_text(text, fingerprint, seal)


def _fingerprint(document: dict[str, Any], endpoint: Endpoint) -> bytes:
    """Of what decides which rows come in which order. Both parts are checked by now, so they are not too deep."""
    orders = document.get("$order_by", {})
    # keys of an object of orders are in the order that counts, those of a filter are not
    order = [list(one.items()) for one in (orders if isinstance(orders, list) else [orders])]
    asked = [endpoint.name, endpoint.version, order, document.get("$filter")]
    return hashlib.blake2b(_canonical(asked), digest_size=8).digest()
