"""Executes query plans in a read transaction.

The result always equals that of a full scan; what an index cannot decide is checked on the row itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from headrace.core.errors import RequestError
from headrace.store.lmdb.environment import translate_damage
from headrace.store.query.conditions import Row as Decoded
from headrace.store.query.cursors import Cursor, other_query
from headrace.store.query.index_scan import Budget, Hit, TooManyError, decoded, hits, items, place
from headrace.store.query.planner import QueryPlan, advice, plan
from headrace.store.query.query import ResultPage, SortOrder, StoreQuery
from headrace.store.query.transaction import QueryTransaction
from headrace.store.rows.served_row import served_rows

_AHEAD = 1_000
"""Rows that are read to find out whether a full page is the last one."""
_ENTRIES_PER_ROW = 10
"""Index entries that may be counted for each row that may be read."""
_INVERTED = bytes(range(255, -1, -1))


def find(transaction: QueryTransaction, query: StoreQuery, bound: int) -> ResultPage:
    """The rows of a page. `bound` limits the rows that may be read without being part of the result."""
    chosen = _planned(transaction, query)
    with translate_damage():
        try:
            return _page(transaction, chosen, query, Budget(bound))
        except TooManyError:
            raise _too_large(transaction, query, bound) from None


def count(transaction: QueryTransaction, query: StoreQuery, bound: int) -> int:
    """The number of rows of the query, without a limit on the page size."""
    if query.after is None:
        if query.filter is None:
            return _part(transaction.rows, query)
        # a count needs no order
        query = replace(query, order=())
    chosen = _planned(transaction, query)
    with translate_damage():
        try:
            return _part(_counted(transaction, chosen, query, bound), query)
        except TooManyError:
            raise _too_large(transaction, query, bound) from None


def _planned(transaction: QueryTransaction, query: StoreQuery) -> QueryPlan:
    chosen = plan(query, transaction.endpoint, transaction.indexes)
    if query.after is not None and chosen.source is not None and query.after.order != chosen.order:
        raise other_query()
    return chosen


def _too_large(transaction: QueryTransaction, query: StoreQuery, bound: int) -> RequestError:
    message = f"the query would read more than {bound:,} rows of '{transaction.endpoint.name}'"
    return RequestError("scan-too-large", message, status=422, hint=advice(query, transaction.endpoint))


def _part(rows: int, query: StoreQuery) -> int:
    rest = max(0, rows - query.skip)
    return rest if query.limit is None else min(rest, query.limit)


def _counted(transaction: QueryTransaction, chosen: QueryPlan, query: StoreQuery, bound: int) -> int:
    most = None if query.limit is None else query.skip + query.limit
    if chosen.sort:
        return len(_sorted(transaction, chosen, query, Budget(bound), most))
    budget = Budget(bound if chosen.rest is not None else bound * _ENTRIES_PER_ROW)
    rows = 0
    for _ in islice(_checked(transaction, chosen, query.after, budget), most):
        budget.spend()
        rows += 1
    return rows


def _page(transaction: QueryTransaction, chosen: QueryPlan, query: StoreQuery, budget: Budget) -> ResultPage:
    if query.limit == 0:
        return ResultPage([], None)
    if chosen.sort:
        most = None if query.limit is None else query.skip + query.limit + 1
        hits_left = iter(_sorted(transaction, chosen, query, budget, most)[query.skip :])
    else:
        hits_left = _checked(transaction, chosen, query.after, budget)
        for _ in islice(hits_left, query.skip):
            budget.spend()
    page = list(islice(hits_left, query.limit))
    rows = served_rows(items(transaction, page))
    if len(rows) != query.limit or not _has_more(hits_left, budget):
        return ResultPage(rows, None)
    end = Cursor(chosen.order, page[-1].values, page[-1].key)
    return ResultPage(rows, end.to_text(query.fingerprint, query.seal))


def _has_more(hits: Iterator[Hit], budget: Budget) -> bool:
    """Whether another row follows; also true when finding out would read too many rows."""
    budget.left = min(budget.left, _AHEAD)
    try:
        return next(hits, None) is not None
    except TooManyError:
        return True


def _checked(transaction: QueryTransaction, chosen: QueryPlan, begin: Cursor | None, budget: Budget) -> Iterator[Hit]:
    """Rows after a position that match the filter, in the order of the plan."""
    candidates = hits(transaction, chosen, begin, budget)
    return _matching(transaction, chosen, candidates, budget) if chosen.checks else candidates


def _matching(transaction: QueryTransaction, chosen: QueryPlan, hits: Iterator[Hit], budget: Budget) -> Iterator[Hit]:
    for hit in hits:
        condition = chosen.whole if hit.shortened else chosen.rest
        if condition is None or condition.matches(decoded(transaction, hit)):
            yield hit
        else:
            budget.spend()


def _sorted(
    transaction: QueryTransaction, chosen: QueryPlan, query: StoreQuery, budget: Budget, most: int | None
) -> list[Hit]:
    """The first matching rows, sorted."""
    if chosen.whole is None and transaction.rows > budget.left:
        raise TooManyError
    matching = _sortable(transaction, chosen, query.after, budget)
    return sorted(matching, key=place) if most is None else heapq.nsmallest(most, matching, key=place)


def _sortable(transaction: QueryTransaction, chosen: QueryPlan, begin: Cursor | None, budget: Budget) -> Iterator[Hit]:
    for hit in _checked(transaction, chosen, None, budget):
        budget.spend()
        values = _sort_key(chosen.sort, decoded(transaction, hit))
        if begin is None or (values, hit.key) > (begin.values, begin.key):
            # without the row, which is read again if needed: thousands of others need not be held
            yield Hit(values, hit.key)


def _sort_key(sort: tuple[SortOrder, ...], row: Decoded) -> bytes:
    """Bytes that sort in the requested order. No key is a prefix of another, so inverted bytes sort in reverse."""
    keys = ((term.field.key(row), term.descending) for term in sort)
    return b"".join(key.translate(_INVERTED) if descending else key for key, descending in keys)
