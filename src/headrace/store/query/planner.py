"""Plans a query: which index and key ranges to read, which conditions remain to check, and whether to sort.

A plan depends only on the query and the endpoint, never on the rows: the next page has the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from headrace.core.endpoints import Endpoint
from headrace.store.query.conditions import (
    Among,
    And,
    Compare,
    ConstantFilter,
    IsNull,
    Or,
    RowFilter,
    Unknown,
    WordsFilter,
    every,
)
from headrace.store.query.key_ranges import Index, KeyRange
from headrace.store.query.query import SortOrder, StoreQuery
from headrace.store.rows.layout import token_prefix

_MANY = 10_000
"""The most key ranges of one index that a query reads."""
_ROWS = 1e6
_PER_VALUE, _PER_WORD, _TWO_SIDED, _ONE_SIDED = 1e-2, 1e-3, 0.1, 0.3
"""Estimated parts of the rows: with one value, with one word, within a range."""


@dataclass(frozen=True)
class IndexRanges:
    """Entries of an index, or rows, in key order. The key ranges are sorted and do not overlap."""

    index: Index
    key_ranges: tuple[KeyRange, ...]


@dataclass(frozen=True)
class Postings:
    """Rows with a word, in the order of their keys."""

    prefix: bytes


@dataclass(frozen=True)
class Union:
    """Rows that any of the sources contains, each once, in key order."""

    sources: tuple[Source, ...]


Source = IndexRanges | Postings | Union


@dataclass(frozen=True)
class QueryPlan:
    """How a query is executed."""

    source: Source | None
    """None: no row can match the filter."""
    rest: RowFilter | None
    """The condition to check on rows, because the index does not decide it."""
    whole: RowFilter | None
    """The condition to check on rows whose entry is shortened."""
    sort: tuple[SortOrder, ...] = ()
    """Not empty: the source has another order, and rows must be sorted."""
    backwards: bool = False
    in_runs: bool = False
    """Whether entries with shortened keys must be sorted among themselves."""

    @property
    def checks(self) -> bool:
        """Whether any row has to be checked."""
        if self.rest is not None or self.whole is None:
            return self.rest is not None
        return isinstance(self.source, IndexRanges) and self.source.index.can_be_shortened

    @property
    def order(self) -> str:
        """The order of the rows: a cursor is a position in exactly this order."""
        if self.sort:
            return "sorted"
        name = "key"
        if isinstance(self.source, IndexRanges) and (self.source.index.number is not None or self.in_runs):
            name = self.source.index.database.decode()
        return f"{name}{' backwards' * self.backwards}{' exactly' * self.in_runs}"


@dataclass
class _ColumnKeys:
    """What a filter says about one column, as keys."""

    equal: tuple[bytes, RowFilter] | None = None
    among: tuple[list[bytes], RowFilter] | None = None
    low: tuple[bytes, bool] | None = None
    high: tuple[bytes, bool] | None = None
    ranges: list[RowFilter] = field(default_factory=list)

    def at_least(self, bound: bytes, inclusive: bool) -> None:
        """Of several lower bounds the highest applies."""
        if self.low is None or (bound, not inclusive) > (self.low[0], not self.low[1]):
            self.low = (bound, inclusive)

    def at_most(self, bound: bytes, inclusive: bool) -> None:
        """Of several upper bounds the lowest applies."""
        if self.high is None or (bound, inclusive) < self.high:
            self.high = (bound, inclusive)


_NOTHING = _ColumnKeys()
_EVERYTHING = (KeyRange(b"", None),)


@dataclass
class _Candidate:
    """A possible source of the rows. It decides the conditions in `used` completely."""

    source: Source
    rows: float
    used: list[RowFilter]


_rows_of = attrgetter("rows")


def plan(query: StoreQuery, endpoint: Endpoint, indexes: Sequence[Index]) -> QueryPlan:
    parts = _parts(query.filter)
    if any(_is_never(part) for part in parts):
        return QueryPlan(None, None, None)
    columns = _columns(parts)
    fixed = {name for name, column in columns.items() if column.equal is not None}
    terms = [term for term in query.order if term.field.column not in fixed]
    candidates = _candidates(parts, columns, endpoint, indexes)
    if terms:
        best = min(candidates, key=lambda candidate: (candidate.rows, not _in_order(candidate.source, terms, fixed)))
    else:
        best = min(candidates, key=_rows_of)
    rest = [part for part in parts if not any(part is used for used in best.used)]
    sorts = not _in_order(best.source, terms, fixed)
    return QueryPlan(
        source=best.source,
        rest=every(rest) if rest else None,
        whole=query.filter,
        sort=tuple(terms) if sorts else (),
        backwards=not sorts and bool(terms) and terms[0].descending,
        in_runs=not sorts
        and bool(terms)
        and isinstance(best.source, IndexRanges)
        and best.source.index.can_be_shortened,
    )


def _parts(condition: RowFilter | None) -> tuple[RowFilter, ...]:
    if condition is None:
        return ()
    return condition.parts if isinstance(condition, And) else (condition,)


def _is_never(part: RowFilter) -> bool:
    match part:
        case Unknown() | ConstantFilter(result=False) | Or(parts=()):
            return True
        case Among(values=values, null=False, among=True):
            return not values
    return False


def _columns(parts: Iterable[RowFilter]) -> dict[str, _ColumnKeys]:
    """The conditions that an index can answer, by column."""
    columns: dict[str, _ColumnKeys] = {}
    for part in parts:
        match part:
            case Compare() | IsNull() | ConstantFilter() | Among():
                if part.field.column is not None:
                    _add_condition(columns.setdefault(part.field.column, _ColumnKeys()), part)
            case _:
                pass
    return columns


def _add_condition(column: _ColumnKeys, part: Any) -> None:
    kind = part.field.kind
    null, not_null = kind.codec.encode(None), b"\x01"
    match part:
        case Compare(how="=", value=value):
            column.equal = column.equal or (kind.key(value), part)
        case IsNull(null=True):
            column.equal = column.equal or (null, part)
        case Among(values=values, null=with_null, among=True):
            keys = {kind.key(value) for value in values} | ({null} if with_null else set())
            column.among = column.among or (sorted(keys), part)
        case Compare(how=">" | ">=" as how, value=value):
            column.at_least(kind.key(value), how == ">=")
            column.ranges.append(part)
        case Compare(how="<" | "<=" as how, value=value):
            column.at_most(kind.key(value), how == "<=")
            column.at_least(not_null, True)
            column.ranges.append(part)
        case IsNull(null=False) | ConstantFilter(result=True):
            column.at_least(not_null, True)
            column.ranges.append(part)


def _candidates(
    parts: tuple[RowFilter, ...], columns: dict[str, _ColumnKeys], endpoint: Endpoint, indexes: Sequence[Index]
) -> list[_Candidate]:
    candidates = [_by_index(index, columns) for index in indexes]
    for part in parts:
        if isinstance(part, WordsFilter):
            candidates += _by_words(part, endpoint)
        elif isinstance(part, Or):
            candidates += _by_union(part, endpoint, indexes)
    return candidates


def _by_index(index: Index, columns: dict[str, _ColumnKeys]) -> _Candidate:
    """Equal values of the first columns, then a range of the next."""
    if not index.columns or index.columns[0] not in columns:
        return _Candidate(IndexRanges(index, _EVERYTHING), _ROWS, [])
    points, used, part = [b""], list[RowFilter](), 1.0
    for name in index.columns:
        column = columns.get(name, _NOTHING)
        if column.equal is not None:
            keys, condition = [column.equal[0]], column.equal[1]
        elif column.among is not None and len(points) * len(column.among[0]) <= _MANY:
            keys, condition = column.among
        else:
            break
        points = [point + key for point in points for key in keys]
        part *= min(1.0, len(keys) * _PER_VALUE)
        used.append(condition)
    matched = len(used)
    column = columns.get(index.columns[matched], _NOTHING) if matched < len(index.columns) else _NOTHING
    if column.ranges:
        key_ranges, loose = _ranges(index, points, column)
        used += column.ranges
        part *= _TWO_SIDED if column.high is not None and len(column.ranges) > 1 else _ONE_SIDED
    else:
        key_ranges, loose = _points(index, points, matched)
    is_key = index.number is None and 0 < matched == len(index.columns)
    rows = len(points) if is_key else _ROWS * part
    ranges = tuple(sorted(set(key_ranges), key=lambda key_range: key_range.low))
    return _Candidate(IndexRanges(index, ranges), rows, [] if loose else used)


def _points(index: Index, points: list[bytes], columns: int) -> tuple[list[KeyRange], bool]:
    if columns == 0:
        return list(_EVERYTHING), False
    ranges = [index.point(point, columns) for point in points]
    return [key_range for key_range, _ in ranges], any(loose for _, loose in ranges)


def _ranges(index: Index, points: list[bytes], column: _ColumnKeys) -> tuple[list[KeyRange], bool]:
    key_ranges, loose = list[KeyRange](), False
    for point in points:
        low, low_is_loose = index.least(point + column.low[0], column.low[1]) if column.low else (point, False)
        if column.high is None:
            high, high_is_loose = KeyRange.of(point[: index.value_bytes]).high, len(point) > index.value_bytes
        else:
            high, high_is_loose = index.most(point + column.high[0], column.high[1])
        loose = loose or low_is_loose or high_is_loose
        key_ranges.append(KeyRange(low, high))
    return [key_range for key_range in key_ranges if not key_range.empty], loose


def _by_words(part: WordsFilter, endpoint: Endpoint) -> list[_Candidate]:
    name = part.field.column
    if name is None or name not in endpoint.text:
        return []
    column = endpoint.text.index(name)
    if part.every:
        # a long word is usually rarer
        word = max(sorted(part.words), key=len)
        return [_Candidate(Postings(token_prefix(word.encode(), column)), _ROWS * _PER_WORD, _only(part))]
    sources = tuple(Postings(token_prefix(word.encode(), column)) for word in sorted(part.words))
    source = sources[0] if len(sources) == 1 else Union(sources)
    return [_Candidate(source, min(_ROWS, _ROWS * _PER_WORD * len(sources)), [part])]


def _only(part: WordsFilter) -> list[RowFilter]:
    return [part] if len(part.words) == 1 else []


def _by_union(part: Or, endpoint: Endpoint, indexes: Sequence[Index]) -> list[_Candidate]:
    """Each branch by its own index, if every branch has one."""
    branches: list[_Candidate] = []
    for branch in part.parts:
        conditions = _parts(branch)
        if any(_is_never(condition) for condition in conditions):
            continue
        best = min(_candidates(conditions, _columns(conditions), endpoint, indexes), key=_rows_of)
        if best.rows >= _ROWS:
            return []
        branches.append(best)
    return [_Candidate(Union(tuple(branch.source for branch in branches)), sum(branch.rows for branch in branches), [])]


def _in_order(source: Source, terms: Sequence[SortOrder], fixed: set[str]) -> bool:
    """Whether rows have the requested order: the columns of the index, without those whose values are all equal."""
    if not terms:
        return True
    if not isinstance(source, IndexRanges) or len({term.descending for term in terms}) > 1:
        return False
    sorted_by = [name for name in (*source.index.columns, *source.index.then_key) if name not in fixed]
    return [term.field.column for term in terms] == sorted_by[: len(terms)]


def advice(query: StoreQuery, endpoint: Endpoint) -> str:
    """How to make an index answer the query, in terms of the project file. It names only the caller's columns."""
    parts = _parts(query.caller_filter)
    columns = _columns(parts)
    equal = [name for name, column in columns.items() if column.equal or column.among]
    ordered = [term.field.column for term in query.order if term.field.column not in equal]
    ranged = [name for name, column in columns.items() if column.ranges and name not in equal]
    one_way = len({term.descending for term in query.order}) == 1 and None not in ordered
    names = [*equal, *(ordered if one_way else ranged[:1])]
    if names and tuple(names) not in (*endpoint.indexes, endpoint.key):
        return f"add an index to the endpoint: indexes: [[{', '.join(str(name) for name in names)}]]"
    words = [part.field.column for part in parts if isinstance(part, WordsFilter) and part.field.column]
    if words and not set(words) <= set(endpoint.text):
        return f"index the words: text: [{', '.join(words)}]"
    return "request fewer rows: filter by a value or a range of an indexed column, and page with $after, not $skip"
