"""Conditions on a row, with the three-valued logic of SQL: a row matches only if the condition is true.

`filters.parse_filter` builds conditions. They are normalized: `Not` appears only around conditions on words and
members. Their values are comparable values of the column's type (see `values`).
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
"""A row decoded from its JSON."""
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
    """A column, or a value within a column: a field of a struct or the value under a key of a map."""

    path: tuple[str, ...]
    kind: Kind

    @property
    def column(self) -> str | None:
        """The column, unless the field is within a column."""
        return self.path[0] if len(self.path) == 1 else None

    def __str__(self) -> str:
        return ".".join(self.path)

    @cached_property
    def of(self) -> Callable[[Row], Any]:
        """Reads the comparable value from a row; None for null."""
        name, *inner = self.path
        read = None if self.kind.as_written else self.kind.read
        if inner:
            return lambda row: _within(row.get(name), inner, read)
        if read is None:
            return lambda row: row.get(name)
        return lambda row: None if (value := row.get(name)) is None else read(value)

    def key(self, row: Row) -> bytes:
        value = self.of(row)
        return self.kind.codec.encode(None) if value is None else self.kind.key(value)


def _within(value: Any, path: list[str], read: Callable[[Any], Any] | None) -> Any:
    for name in path:
        if value is None:
            return None
        value = value.get(name)
    return value if value is None or read is None else read(value)


class RowFilter:
    """A condition that selects rows.

    Not an ABC: `isinstance` on an ABC would cost the planner more than planning.
    """

    def matches(self, row: Row) -> bool:
        """Whether the condition selects a row that was decoded from its JSON."""
        return self._test(row) is True

    def _test(self, row: Row) -> bool | None:
        """True, False, or None for unknown."""
        raise NotImplementedError


@dataclass(frozen=True)
class Compare(RowFilter):
    """A field compared with a value; unknown for a null."""

    field: Field
    how: Comparison
    value: Any

    @cached_property
    def _compare(self) -> Callable[[Any, Any], bool]:
        return _COMPARE[self.how]

    def _test(self, row: Row) -> bool | None:
        value = self.field.of(row)
        return None if value is None else self._compare(value, self.value)


@dataclass(frozen=True)
class IsNull(RowFilter):
    """Whether a field is null; never unknown."""

    field: Field
    null: bool = True

    def _test(self, row: Row) -> bool:
        return (self.field.of(row) is None) is self.null


@dataclass(frozen=True)
class ConstantFilter(RowFilter):
    """The same result for all values, because the operand is outside the type's range; unknown for a null."""

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
    """Whether a field has one of some values, which may include null."""

    field: Field
    values: frozenset[Any]
    null: bool = False
    among: bool = True

    def _test(self, row: Row) -> bool | None:
        value = self.field.of(row)
        if value is None:
            return self.among if self.null else None
        return (value in self.values) is self.among


@dataclass(frozen=True)
class WordsFilter(RowFilter):
    """Whether a text contains any or all of some words."""

    field: Field
    words: frozenset[str]
    every: bool

    def _test(self, row: Row) -> bool | None:
        text = self.field.of(row)
        if text is None:
            return None
        text_words = tokens(text)
        return self.words <= text_words if self.every else not self.words.isdisjoint(text_words)


@dataclass(frozen=True)
class Members(RowFilter):
    """Whether a list contains any or all of some values."""

    field: Field
    values: frozenset[Any]
    every: bool

    def _test(self, row: Row) -> bool | None:
        stored = self._stored(row)
        if stored is None:
            return None
        return self.values <= stored if self.every else not self.values.isdisjoint(stored)

    def _stored(self, row: Row) -> set[Any] | None:
        kind = self.field.kind
        assert isinstance(kind, Lists)
        stored = _within(row.get(self.field.path[0]), list(self.field.path[1:]), None)
        return None if stored is None else {kind.item.read(item) for item in stored if item is not None}


@dataclass(frozen=True)
class Not(RowFilter):
    """The negation of a condition that has no direct opposite."""

    part: RowFilter

    def _test(self, row: Row) -> bool | None:
        result = self.part._test(row)
        return None if result is None else not result


@dataclass(frozen=True)
class And(RowFilter):
    """All of some conditions; without parts: every row."""

    parts: tuple[RowFilter, ...]

    def _test(self, row: Row) -> bool | None:
        result: bool | None = True
        for part in self.parts:
            part_result = part._test(row)
            if part_result is False:
                return False
            if part_result is None:
                result = None
        return result


@dataclass(frozen=True)
class Or(RowFilter):
    """Any of some conditions; without parts: no row."""

    parts: tuple[RowFilter, ...]

    def _test(self, row: Row) -> bool | None:
        result: bool | None = False
        for part in self.parts:
            part_result = part._test(row)
            if part_result is True:
                return True
            if part_result is None:
                result = None
        return result


def negated(condition: RowFilter) -> RowFilter:
    """True where the condition is false, unknown where it is unknown."""
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
    """The conjunction, flattened: the planner looks only at the parts of the outermost one."""
    flat: list[RowFilter] = []
    for part in parts:
        flat += part.parts if isinstance(part, And) else [part]
    return flat[0] if len(flat) == 1 else And(tuple(flat))
