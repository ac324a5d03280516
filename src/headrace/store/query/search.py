"""Queries on one moment of a store: plans carried out.

An answer is always that of looking at every row; what an index cannot tell is checked on the row itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from headrace.core.errors import RequestError
from headrace.store.lmdb.environment import damage_told
from headrace.store.query.conditions import Row as Decoded
from headrace.store.query.cursors import Cursor, other_query
from headrace.store.query.index_scan import Budget, Hit, TooManyError, decoded, hits, items, place
from headrace.store.query.planner import QueryPlan, advice, plan
from headrace.store.query.query import ResultPage, SortOrder, StoreQuery

if TYPE_CHECKING:
    from headrace.store.endpoint.reader import ReadTransaction

_AHEAD = 1_000
"""Rows that are looked at to learn whether a full page is the last one."""
_ENTRIES_PER_ROW = 10
"""Entries of an index that may be counted where one row may be looked at."""
_TURNED_OVER = bytes(range(255, -1, -1))


def find(view: ReadTransaction, query: StoreQuery, bound: int) -> ResultPage:
    """The rows of a page. `bound` is how many rows may be looked at that are not part of the answer."""
    chosen = _planned(view, query)
    with damage_told():
        try:
            return _page(view, chosen, query, Budget(bound))
        except TooManyError:
            raise _too_large(view, query, bound) from None


def count(view: ReadTransaction, query: StoreQuery, bound: int) -> int:
    """How many rows the query gives, were there no limit to the size of a page."""
    if query.after is None:
        if query.filter is None:
            return _part(view.rows, query)
        # no order is worth sorting for
        query = replace(query, order=())
    chosen = _planned(view, query)
    with damage_told():
        try:
            return _part(_counted(view, chosen, query, bound), query)
        except TooManyError:
            raise _too_large(view, query, bound) from None


def _planned(view: ReadTransaction, query: StoreQuery) -> QueryPlan:
    chosen = plan(query, view.endpoint, view.reader.indexes)
    if query.after is not None and chosen.source is not None and query.after.order != chosen.order:
        raise other_query()
    return chosen


def _too_large(view: ReadTransaction, query: StoreQuery, bound: int) -> RequestError:
    message = f"more than {bound:,} rows of '{view.endpoint.name}' would have to be looked at"
    return RequestError("scan-too-large", message, status=422, hint=advice(query, view.endpoint))


def _part(rows: int, query: StoreQuery) -> int:
    rest = max(0, rows - query.skip)
    return rest if query.limit is None else min(rest, query.limit)


def _counted(view: ReadTransaction, chosen: QueryPlan, query: StoreQuery, bound: int) -> int:
    most = None if query.limit is None else query.skip + query.limit
    if chosen.sort:
        return len(_sorted(view, chosen, query, Budget(bound), most))
    budget = Budget(bound if chosen.rest is not None else bound * _ENTRIES_PER_ROW)
    found = 0
    for _ in islice(_checked(view, chosen, query.after, budget), most):
        budget.spend()
        found += 1
    return found


def _page(view: ReadTransaction, chosen: QueryPlan, query: StoreQuery, budget: Budget) -> ResultPage:
    if query.limit == 0:
        return ResultPage([], None)
    if chosen.sort:
        most = None if query.limit is None else query.skip + query.limit + 1
        found = iter(_sorted(view, chosen, query, budget, most)[query.skip :])
    else:
        found = _checked(view, chosen, query.after, budget)
        for _ in islice(found, query.skip):
            budget.spend()
    page = list(islice(found, query.limit))
    rows = view.unpacked(items(view, page))
    if len(rows) != query.limit or not _goes_on(found, budget):
        return ResultPage(rows, None)
    end = Cursor(chosen.order, page[-1].values, page[-1].key)
    return ResultPage(rows, end.to_text(query.fingerprint, query.seal))


def _goes_on(found: Iterator[Hit], budget: Budget) -> bool:
    """Whether there is one more row; when that takes long to tell, there may be."""
    budget.left = min(budget.left, _AHEAD)
    try:
        return next(found, None) is not None
    except TooManyError:
        return True


def _checked(view: ReadTransaction, chosen: QueryPlan, begin: Cursor | None, budget: Budget) -> Iterator[Hit]:
    """What meets the filter after a place, in the order of the plan."""
    found = hits(view, chosen, begin, budget)
    return _matching(view, chosen, found, budget) if chosen.checks else found


def _matching(view: ReadTransaction, chosen: QueryPlan, found: Iterator[Hit], budget: Budget) -> Iterator[Hit]:
    for hit in found:
        condition = chosen.whole if hit.shortened else chosen.rest
        if condition is None or condition.matches(decoded(view, hit)):
            yield hit
        else:
            budget.spend()


def _sorted(view: ReadTransaction, chosen: QueryPlan, query: StoreQuery, budget: Budget, most: int | None) -> list[Hit]:
    """The first of what meets the filter, sorted."""
    if chosen.whole is None and view.rows > budget.left:
        raise TooManyError
    found = _sortable(view, chosen, query.after, budget)
    return sorted(found, key=place) if most is None else heapq.nsmallest(most, found, key=place)


def _sortable(view: ReadTransaction, chosen: QueryPlan, begin: Cursor | None, budget: Budget) -> Iterator[Hit]:
    for hit in _checked(view, chosen, None, budget):
        budget.spend()
        values = _sort_key(chosen.sort, decoded(view, hit))
        if begin is None or (values, hit.key) > (begin.values, begin.key):
            # without the row, which is read again if it is wanted: thousands of others need not be kept
            yield Hit(values, hit.key)


def _sort_key(sort: tuple[SortOrder, ...], row: Decoded) -> bytes:
    """Bytes that sort as is wanted. No key is the beginning of another, so turned over they sort the other way."""
    keys = ((term.field.key(row), term.descending) for term in sort)
    return b"".join(key.translate(_TURNED_OVER) if descending else key for key, descending in keys)
