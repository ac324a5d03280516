"""How a query is answered: which index, which ranges of it, what is left to check, and whether rows must be sorted.

A plan depends on the query and the endpoint only, never on the rows: the next page is found by the same plan.
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
"""Ranges of one index that are looked at in one query."""
_ROWS = 1e6
_PER_VALUE, _PER_WORD, _TWO_SIDED, _ONE_SIDED = 1e-2, 1e-3, 0.1, 0.3
"""What part of the rows is guessed to have one value, to have one word, or to be in a range."""


@dataclass(frozen=True)
class Ranges:
    """Entries of an index, or rows, in the order of their keys. The spans are sorted and do not overlap."""

    index: Index
    spans: tuple[KeyRange, ...]


@dataclass(frozen=True)
class Postings:
    """Rows with a word, in the order of their keys."""

    prefix: bytes


@dataclass(frozen=True)
class Union:
    """Rows that any of these find, each once, in the order of their keys."""

    sources: tuple[Source, ...]


Source = Ranges | Postings | Union


@dataclass(frozen=True)
class QueryPlan:
    """How a query is answered."""

    source: Source | None
    """None: no row can meet the filter."""
    rest: RowFilter | None
    """What rows have to be checked for: the index does not answer it."""
    whole: RowFilter | None
    """What those rows have to be checked for whose entry is shortened, so that it says too little."""
    sort: tuple[SortOrder, ...] = ()
    """Not empty: rows come in no useful order and must be sorted."""
    backwards: bool = False
    in_runs: bool = False
    """Whether entries with shortened keys must be put in order among themselves."""

    @property
    def checks(self) -> bool:
        """Whether any row has to be checked."""
        if self.rest is not None or self.whole is None:
            return self.rest is not None
        return isinstance(self.source, Ranges) and self.source.index.can_be_shortened

    @property
    def order(self) -> str:
        """Which order rows come in: a cursor is a place in just this one."""
        if self.sort:
            return "sorted"
        name = "key"
        if isinstance(self.source, Ranges) and (self.source.index.number is not None or self.in_runs):
            name = self.source.index.database.decode()
        return f"{name}{' backwards' * self.backwards}{' exactly' * self.in_runs}"


@dataclass
class _ColumnKeys:
    """What a filter says of one column, as keys."""

    equal: tuple[bytes, RowFilter] | None = None
    among: tuple[list[bytes], RowFilter] | None = None
    low: tuple[bytes, bool] | None = None
    high: tuple[bytes, bool] | None = None
    ranges: list[RowFilter] = field(default_factory=list)

    def at_least(self, bound: bytes, inclusive: bool) -> None:
        """Of several lower bounds the highest counts."""
        if self.low is None or (bound, not inclusive) > (self.low[0], not self.low[1]):
            self.low = (bound, inclusive)

    def at_most(self, bound: bytes, inclusive: bool) -> None:
        """Of several upper bounds the lowest counts."""
        if self.high is None or (bound, inclusive) < self.high:
            self.high = (bound, inclusive)


_NOTHING = _ColumnKeys()
_EVERYTHING = (KeyRange(b"", None),)


@dataclass
class _Candidate:
    """A way to find rows. `used` are conditions that it answers in full."""

    source: Source
    rows: float
    used: list[RowFilter]


_rows_of = attrgetter("rows")


def plan(query: StoreQuery, endpoint: Endpoint, indexes: Sequence[Index]) -> QueryPlan:
    """The best way to answer a query."""
    parts = _parts(query.filter)
    if any(_is_never(part) for part in parts):
        return QueryPlan(None, None, None)
    columns = _columns(parts)
    fixed = {name for name, column in columns.items() if column.equal is not None}
    wanted = [term for term in query.order if term.field.column not in fixed]
    candidates = _candidates(parts, columns, endpoint, indexes)
    if wanted:
        best = min(candidates, key=lambda one: (one.rows, not _in_order(one.source, wanted, fixed)))
    else:
        best = min(candidates, key=_rows_of)
    rest = [part for part in parts if not any(part is used for used in best.used)]
    sorts = not _in_order(best.source, wanted, fixed)
    return QueryPlan(
        source=best.source,
        rest=every(rest) if rest else None,
        whole=query.filter,
        sort=tuple(wanted) if sorts else (),
        backwards=not sorts and bool(wanted) and wanted[0].descending,
        in_runs=not sorts and bool(wanted) and isinstance(best.source, Ranges) and best.source.index.can_be_shortened,
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
    """What can be looked up, by column."""
    found: dict[str, _ColumnKeys] = {}
    for part in parts:
        match part:
            case Compare() | IsNull() | ConstantFilter() | Among():
                if part.field.column is not None:
                    _note(found.setdefault(part.field.column, _ColumnKeys()), part)
            case _:
                pass
    return found


def _note(column: _ColumnKeys, part: Any) -> None:
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
    found = [_looked_up(index, columns) for index in indexes]
    for part in parts:
        if isinstance(part, WordsFilter):
            found += _by_words(part, endpoint)
        elif isinstance(part, Or):
            found += _by_union(part, endpoint, indexes)
    return found


def _looked_up(index: Index, columns: dict[str, _ColumnKeys]) -> _Candidate:
    """Equal values of the first columns, then a range of the next."""
    if not index.columns or index.columns[0] not in columns:
        return _Candidate(Ranges(index, _EVERYTHING), _ROWS, [])
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
        spans, loose = _ranges(index, points, column)
        used += column.ranges
        part *= _TWO_SIDED if column.high is not None and len(column.ranges) > 1 else _ONE_SIDED
    else:
        spans, loose = _points(index, points, matched)
    is_key = index.number is None and 0 < matched == len(index.columns)
    rows = len(points) if is_key else _ROWS * part
    return _Candidate(Ranges(index, tuple(sorted(set(spans), key=lambda span: span.low))), rows, [] if loose else used)


def _points(index: Index, points: list[bytes], columns: int) -> tuple[list[KeyRange], bool]:
    if columns == 0:
        return list(_EVERYTHING), False
    found = [index.point(point, columns) for point in points]
    return [span for span, _ in found], any(loose for _, loose in found)


def _ranges(index: Index, points: list[bytes], column: _ColumnKeys) -> tuple[list[KeyRange], bool]:
    spans, loose = list[KeyRange](), False
    for point in points:
        low, low_is_loose = index.least(point + column.low[0], column.low[1]) if column.low else (point, False)
        if column.high is None:
            high, high_is_loose = KeyRange.of(point[: index.kept]).high, len(point) > index.kept
        else:
            high, high_is_loose = index.most(point + column.high[0], column.high[1])
        loose = loose or low_is_loose or high_is_loose
        spans.append(KeyRange(low, high))
    return [span for span in spans if not span.empty], loose


def _by_words(part: WordsFilter, endpoint: Endpoint) -> list[_Candidate]:
    name = part.field.column
    if name is None or name not in endpoint.text:
        return []
    column = endpoint.text.index(name)
    if part.every:
        # a long word is the rarer one, as a rule
        word = max(sorted(part.words), key=len)
        return [_Candidate(Postings(token_prefix(word.encode(), column)), _ROWS * _PER_WORD, _only(part))]
    sources = tuple(Postings(token_prefix(word.encode(), column)) for word in sorted(part.words))
    source = sources[0] if len(sources) == 1 else Union(sources)
    return [_Candidate(source, min(_ROWS, _ROWS * _PER_WORD * len(sources)), [part])]


def _only(part: WordsFilter) -> list[RowFilter]:
    return [part] if len(part.words) == 1 else []


def _by_union(part: Or, endpoint: Endpoint, indexes: Sequence[Index]) -> list[_Candidate]:
    """Every branch by an index of its own, if each has one."""
    branches: list[_Candidate] = []
    for branch in part.parts:
        conditions = _parts(branch)
        if any(_is_never(one) for one in conditions):
            continue
        best = min(_candidates(conditions, _columns(conditions), endpoint, indexes), key=_rows_of)
        if best.rows >= _ROWS:
            return []
        branches.append(best)
    return [_Candidate(Union(tuple(one.source for one in branches)), sum(one.rows for one in branches), [])]


def _in_order(source: Source, wanted: Sequence[SortOrder], fixed: set[str]) -> bool:
    """Whether rows come as they are wanted: the columns of the index without those that are all equal."""
    if not wanted:
        return True
    if not isinstance(source, Ranges) or len({term.descending for term in wanted}) > 1:
        return False
    sorted_by = [name for name in (*source.index.columns, *source.index.then_key) if name not in fixed]
    return [term.field.column for term in wanted] == sorted_by[: len(wanted)]


def advice(query: StoreQuery, endpoint: Endpoint) -> str:
    """What would make an index answer it, as it stands in a project file. It names only what the caller named."""
    parts = _parts(query.asked)
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
        return f"let the words be indexed: text: [{', '.join(words)}]"
    return "ask for fewer rows: name values or a range of an indexed column, and go on with $after instead of $skip"
