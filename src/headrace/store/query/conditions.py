"""Conditions on a row, with the logic of SQL: true, false or unknown, and only rows for which it is true are met.

Conditions are made by `filters.parse_filter` and are always in a form without a `not` before them, except before those
about words and members. Values in them are comparable ones of the column's type (see `values`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from headrace.store.rows.tokens import tokens
from headrace.store.rows.values import Kind, Lists

Row = dict[str, Any]
"""A row as its JSON is decoded."""
Comparison = Literal["=", "!=", "<", "<=", ">", ">="]

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OPPOSITE: dict[Comparison, Comparison] = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


@dataclass(frozen=True)
class Field:
    """A column, or a value within one: a field of a struct or the value under a key of a map."""

    path: tuple[str, ...]
    kind: Kind

    @property
    def column(self) -> str | None:
        """The column, if it is one."""
        return self.path[0] if len(self.path) == 1 else None

    def __str__(self) -> str:
        return ".".join(self.path)

    @cached_property
    def of(self) -> Callable[[Row], Any]:
        """Gives the comparable value in a row, None for null."""
        name, *inner = self.path
        read = None if self.kind.as_written else self.kind.read
        if inner:
            return lambda row: _within(row.get(name), inner, read)
        if read is None:
            return lambda row: row.get(name)
        return lambda row: None if (value := row.get(name)) is None else read(value)

    def key(self, row: Row) -> bytes:
        """The bytes by which rows are sorted by this field."""
        value = self.of(row)
        return self.kind.codec.encode(None) if value is None else self.kind.key(value)


def _within(value: Any, path: list[str], read: Callable[[Any], Any] | None) -> Any:
    for name in path:
        if value is None:
            return None
        value = value.get(name)
    return value if value is None or read is None else read(value)


class RowFilter:
    """A condition that rows are chosen by.

    Not an abstract class to Python: asking what kind a condition is would cost a planner more than planning.
    """

    def matches(self, row: Row) -> bool:
        """Whether a row, decoded from its JSON, is chosen."""
        return self._test(row) is True

    def _test(self, row: Row) -> bool | None:
        """True, false, or None for unknown."""
        raise NotImplementedError


@dataclass(frozen=True)
class Compare(RowFilter):
    """A field compared with a value; unknown of a null."""

    field: Field
    how: Comparison
    value: Any

    @cached_property
    def _compare(self) -> Callable[[Any, Any], bool]:
        return _COMPARE[self.how]

    def _test(self, row: Row) -> bool | None:
        found = self.field.of(row)
        return None if found is None else self._compare(found, self.value)


@dataclass(frozen=True)
class IsNull(RowFilter):
    """Whether a field is null; never unknown."""

    field: Field
    null: bool = True

    def _test(self, row: Row) -> bool:
        return (self.field.of(row) is None) is self.null


@dataclass(frozen=True)
class ConstantFilter(RowFilter):
    """The same for all values, since what a caller compares with is beyond those of the type; unknown of a null."""

    field: Field
    result: bool

    def _test(self, row: Row) -> bool | None:
        return None if self.field.of(row) is None else self.result


@dataclass(frozen=True)
class Unknown(RowFilter):
    """A comparison with null."""

    def _test(self, row: Row) -> None:
        return None


@dataclass(frozen=True)
class Among(RowFilter):
    """Whether a field is one of some values, of which null may be one."""

    field: Field
    values: frozenset[Any]
    null: bool = False
    among: bool = True

    def _test(self, row: Row) -> bool | None:
        found = self.field.of(row)
        if found is None:
            return self.among if self.null else None
        return (found in self.values) is self.among


@dataclass(frozen=True)
class WordsFilter(RowFilter):
    """Whether a text has any or every one of some words."""

    field: Field
    words: frozenset[str]
    every: bool

    def _test(self, row: Row) -> bool | None:
        found = self.field.of(row)
        if found is None:
            return None
        there = tokens(found)
        return self.words <= there if self.every else not self.words.isdisjoint(there)


@dataclass(frozen=True)
class Members(RowFilter):
    """Whether a list has any or every one of some values."""

    field: Field
    values: frozenset[Any]
    every: bool

    def _test(self, row: Row) -> bool | None:
        found = self._stored(row)
        if found is None:
            return None
        return self.values <= found if self.every else not self.values.isdisjoint(found)

    def _stored(self, row: Row) -> set[Any] | None:
        kind = self.field.kind
        assert isinstance(kind, Lists)
        stored = _within(row.get(self.field.path[0]), list(self.field.path[1:]), None)
        return None if stored is None else {kind.item.read(one) for one in stored if one is not None}


@dataclass(frozen=True)
class Not(RowFilter):
    """The opposite of a condition that has no opposite of its own."""

    part: RowFilter

    def _test(self, row: Row) -> bool | None:
        found = self.part._test(row)
        return None if found is None else not found


@dataclass(frozen=True)
class And(RowFilter):
    """All of some conditions; of none: every row."""

    parts: tuple[RowFilter, ...]

    def _test(self, row: Row) -> bool | None:
        result: bool | None = True
        for part in self.parts:
            found = part._test(row)
            if found is False:
                return False
            if found is None:
                result = None
        return result


@dataclass(frozen=True)
class Or(RowFilter):
    """Any of some conditions; of none: no row."""

    parts: tuple[RowFilter, ...]

    def _test(self, row: Row) -> bool | None:
        result: bool | None = False
        for part in self.parts:
            found = part._test(row)
            if found is True:
                return True
            if found is None:
                result = None
        return result


def negated(condition: RowFilter) -> RowFilter:
    """True where a condition is false, and unknown where that is."""
    match condition:
        case Compare(field, how, value):
            return Compare(field, _OPPOSITE[how], value)
        case IsNull(field, null):
            return IsNull(field, not null)
        case ConstantFilter(field, result):
            return ConstantFilter(field, not result)
        case Among(field, values, null, among):
            return Among(field, values, null, not among)
        case And(parts):
            return Or(tuple(negated(part) for part in parts))
        case Or(parts):
            return every([negated(part) for part in parts])
        case Not(part):
            return part
        case Unknown():
            return condition
    return Not(condition)


def every(parts: list[RowFilter]) -> RowFilter:
    """All of them, as flat as can be: a planner looks at the parts of the outermost."""
    flat: list[RowFilter] = []
    for part in parts:
        flat += part.parts if isinstance(part, And) else [part]
    return flat[0] if len(flat) == 1 else And(tuple(flat))
