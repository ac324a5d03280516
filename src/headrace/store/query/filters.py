"""The filter language of endpoints: parses JSON documents into conditions, typed by the endpoint's columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from headrace.core.endpoints import Endpoint
from headrace.core.errors import RequestError, did_you_mean
from headrace.store.query.conditions import (
    Among,
    Compare,
    Comparison,
    ConstantFilter,
    Field,
    IsNull,
    Members,
    Or,
    RowFilter,
    Unknown,
    WordsFilter,
    every,
    negated,
)
from headrace.store.rows.tokens import tokens
from headrace.store.rows.values import Kind, Lists, NumberKind, is_encodable, kind_of

__all__ = ["RowFilter", "both", "field_of", "parse_filter"]

DEPTH, CONDITIONS, VALUES = 32, 1_000, 10_000
"""Limits of a filter: nesting depth, number of conditions, number of values of one list."""
_COMPARISONS: dict[str, Comparison] = {
    "$eq": "=",
    "$ne": "!=",
    "$lt": "<",
    "$lte": "<=",
    "$gt": ">",
    "$gte": ">=",
}
_JOINS = ("$and", "$or")
_ON_FIELDS = (*_COMPARISONS, "$in", "$nin", "$contains", "$matches_any", "$matches_all", "$not")
_SHOWN = 60


def parse_filter(document: Any, endpoint: Endpoint) -> RowFilter:
    """Parse a filter document; RequestError when it is not valid."""
    return _Parser(endpoint).filter(document, 1)


def both(first: RowFilter | None, second: RowFilter | None) -> RowFilter | None:
    """A filter that requires both, such as the caller's filter and the row filter of the caller's token."""
    parts = [part for part in (first, second) if part is not None]
    return every(parts) if parts else None


def field_of(name: str, endpoint: Endpoint) -> Field:
    """The column of that name, or a value within a column: `address.city`, `labels.colour`."""
    columns = endpoint.types
    if name in columns:
        return Field((name,), kind_of(columns[name]))
    # column names may contain dots: the longest matching column wins
    outer = [column for column in columns if name.startswith(f"{column}.")]
    for column in sorted(outer, key=len, reverse=True):
        return _inner(Field((column,), kind_of(columns[column])), name[len(column) + 1 :])
    raise _unknown_column(name, endpoint.name, columns)


def _inner(outer: Field, rest: str) -> Field:
    """A value within a struct or a map, by the rest of a dotted name."""
    kind = outer.kind.type
    if pa.types.is_map(kind) and not pa.types.is_nested(kind.item_type):
        return _child(outer, rest)
    if pa.types.is_struct(kind):
        names = [field.name for field in kind if rest == field.name or rest.startswith(f"{field.name}.")]
        name = max(names, key=len, default=rest.partition(".")[0])
    else:
        name = rest.partition(".")[0]
    child = _child(outer, name)
    return child if len(rest) == len(name) else _inner(child, rest[len(name) + 1 :])


def _child(outer: Field, name: str) -> Field:
    """A field of a struct, or the value under a key of a map."""
    kind = outer.kind.type
    if pa.types.is_map(kind) and is_encodable(name):
        return Field((*outer.path, name), kind_of(kind.item_type))
    if pa.types.is_struct(kind):
        if kind.get_field_index(name) < 0:
            raise _unknown_column(name, str(outer), [field.name for field in kind])
        return Field((*outer.path, name), kind_of(kind.field(name).type))
    raise RequestError(
        "unknown-column",
        f"'{outer}' is {outer.kind.name} and has no field '{name}'",
        hint="a filter can name fields of structs and keys of maps; use $contains for values of a list",
    )


def _unknown_column(name: str, place: str, known: Iterable[str]) -> RequestError:
    return RequestError(
        "unknown-column",
        f"'{place}' has no column '{name[:_SHOWN]}'",
        hint=did_you_mean(name[:_SHOWN], known, f"columns of '{place}'"),
    )


def _bad(message: str, hint: str | None = None) -> RequestError:
    return RequestError("bad-filter", message, hint=hint)


class _Parser:
    """Parses one document. The depth is passed down, so that no document can exhaust the stack."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._conditions = 0

    def filter(self, document: Any, depth: int) -> RowFilter:
        self._check_depth(depth)
        if not isinstance(document, dict):
            raise _bad(
                f"a filter must be an object, not {_what(document)}",
                'name columns and their values: {"region": "EU", "amount": {"$gt": 10}}',
            )
        return every([self._entry(key, value, depth) for key, value in document.items()])

    def _check_depth(self, depth: int) -> None:
        if depth > DEPTH:
            raise _bad(f"the filter is nested deeper than {DEPTH} levels")

    def _entry(self, key: str, value: Any, depth: int) -> RowFilter:
        if key in _JOINS:
            return self._join(key, value, depth)
        if key == "$not":
            return negated(self.filter(value, depth + 1))
        if key in _ON_FIELDS:
            raise _bad(f"{key} needs a column", f'write it after a column: {{"amount": {{"{key}": …}}}}')
        if key.startswith("$"):
            raise _unknown_operator(key, (*_JOINS, *_ON_FIELDS))
        return self._on_field(field_of(key, self._endpoint), value, depth)

    def _join(self, key: str, value: Any, depth: int) -> RowFilter:
        if not isinstance(value, list) or len(value) < 2:
            raise _bad(f"{key} needs a list of two or more filters, not {_what(value)}")
        parts = [self.filter(part, depth + 1) for part in value]
        return every(parts) if key == "$and" else Or(tuple(parts))

    def _on_field(self, field: Field, value: Any, depth: int) -> RowFilter:
        self._check_depth(depth)
        if isinstance(value, list):
            raise _bad(
                f"the value of '{field}' is a list",
                f'to match one of its values: {{"{field}": {{"$in": […]}}}}; to match the list: {{"$eq": […]}}',
            )
        if not isinstance(value, dict):
            return self._operator(field, "$eq", value, depth)
        if not value:
            raise _bad(f"the value of '{field}' is an empty object", "write a value or an operator")
        if all(key.startswith("$") for key in value):
            return every([self._operator(field, key, operand, depth) for key, operand in value.items()])
        return self._within(field, value, depth)

    def _within(self, field: Field, value: dict[str, Any], depth: int) -> RowFilter:
        """Fields of a struct or keys of a map, named by a nested object."""
        operators = [key for key in value if key.startswith("$")]
        if operators:
            raise _bad(f"'{field}' mixes operators and names: {', '.join(value)[:_SHOWN]}")
        if not pa.types.is_struct(field.kind.type) and not pa.types.is_map(field.kind.type):
            raise _unknown_operator(next(iter(value)), _ON_FIELDS)
        # a key of a map may contain dots, and is used as it is
        find = _child if pa.types.is_map(field.kind.type) else _inner
        return every([self._on_field(find(field, name), inner_value, depth + 1) for name, inner_value in value.items()])

    def _operator(self, field: Field, key: str, operand: Any, depth: int) -> RowFilter:
        self._conditions += 1
        if self._conditions > CONDITIONS:
            raise _bad(f"the filter has more than {CONDITIONS:,} conditions", "use $in for many values of one column")
        match key:
            case "$in":
                return _among(field, operand)
            case "$nin":
                return negated(_among(field, operand))
            case "$contains" | "$matches_any" | "$matches_all":
                return _search(field, key, operand)
            case "$not":
                return self._negated_operators(field, operand, depth)
            case _ if key in _COMPARISONS:
                return _compared(field, key, operand)
        raise _unknown_operator(key, _ON_FIELDS)

    def _negated_operators(self, field: Field, operand: Any, depth: int) -> RowFilter:
        if not isinstance(operand, dict):
            raise _bad(f"$not of '{field}' needs operators, not {_what(operand)}", 'for a value use {"$ne": …}')
        return negated(self._on_field(field, operand, depth + 1))


def _unknown_operator(key: str, known: Iterable[str]) -> RequestError:
    hint = did_you_mean(key[:_SHOWN], known, "operators")
    return RequestError("unknown-operator", f"unknown operator '{key[:_SHOWN]}'", hint=hint)


def _what(value: Any) -> str:
    """A value for messages: short, however large it is."""
    match value:
        case dict():
            return "an object"
        case list():
            return "a list" if value else "an empty list"
        case int() if value.bit_length() > 256:
            return "a number of very many digits"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _parsed(field: Field, kind: Kind, value: Any, parse: Callable[[Any], Any]) -> Any:
    """A caller's value, converted to the type."""
    try:
        return parse(value)
    except ValueError:
        message = f"'{field}' is {field.kind.name} and needs {kind.expected}, not {_what(value)}"
        raise _bad(message) from None


def _compared(field: Field, key: str, operand: Any) -> RowFilter:
    how = _COMPARISONS[key]
    if operand is None:
        return {"=": IsNull(field), "!=": IsNull(field, False)}.get(how, Unknown())
    kind = field.kind
    if isinstance(kind, NumberKind):
        return _number(field, kind, how, _parsed(field, kind, operand, kind.exact))
    return Compare(field, how, _parsed(field, kind, operand, kind.parse))


def _number(field: Field, kind: NumberKind, how: Comparison, number: Any) -> RowFilter:
    """Compare a column with any number: an equivalent comparison with a number that the column can hold."""
    if number > kind.high:
        return ConstantFilter(field, how in ("<", "<=", "!="))
    if number < kind.low:
        return ConstantFilter(field, how in (">", ">=", "!="))
    floor = kind.floor(number)
    if floor == number:
        return Compare(field, how, floor)
    if how in ("=", "!="):
        return ConstantFilter(field, how == "!=")
    return Compare(field, "<=" if how in ("<", "<=") else ">", floor)


def _among(field: Field, operand: Any) -> RowFilter:
    if not isinstance(operand, list):
        raise _bad(f"$in and $nin of '{field}' need a list, not {_what(operand)}")
    _check_values(field, operand)
    values = [_equal_value(field, field.kind, value) for value in operand if value is not None]
    return Among(field, frozenset(value for value in values if value is not None), None in operand)


def _check_values(field: Field, values: list[Any]) -> None:
    if len(values) > VALUES:
        raise _bad(
            f"'{field}' is compared with {len(values):,} values; at most {VALUES:,} are allowed", "split the query"
        )


def _equal_value(field: Field, kind: Kind, value: Any) -> Any:
    """A value to compare with; None for a number that the column cannot hold."""
    if not isinstance(kind, NumberKind):
        return _parsed(field, kind, value, kind.parse)
    number = _parsed(field, kind, value, kind.exact)
    if not kind.low <= number <= kind.high or kind.floor(number) != number:
        return None
    return kind.floor(number)


def _search(field: Field, key: str, operand: Any) -> RowFilter:
    """Words in a text, or values in a list."""
    if operand is None:
        return Unknown()
    kind = field.kind
    if isinstance(kind, Lists):
        return _members(field, kind, key, operand)
    if not (pa.types.is_string(kind.type) or pa.types.is_large_string(kind.type)):
        raise _bad(f"{key} applies to texts and lists; '{field}' is {kind.name}")
    texts = operand if isinstance(operand, list) and key != "$contains" else [operand]
    _check_values(field, texts)
    words = frozenset(word for text in texts for word in tokens(_parsed(field, kind, text, kind.parse)))
    if not words:
        raise _bad(f"{key} of '{field}' contains no word: {_what(operand)}", "words consist of letters and digits")
    return WordsFilter(field, words, every=key != "$matches_any")


def _members(field: Field, kind: Lists, key: str, operand: Any) -> RowFilter:
    elements = operand if isinstance(operand, list) and key != "$contains" else [operand]
    _check_values(field, elements)
    values = [_equal_value(field, kind.item, element) for element in elements]
    if key != "$matches_any" and None in values:
        return ConstantFilter(field, False)
    return Members(field, frozenset(value for value in values if value is not None), every=key != "$matches_any")
