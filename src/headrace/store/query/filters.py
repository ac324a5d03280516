"""The filter language of endpoints: JSON documents made conditions, typed by the endpoint's columns."""

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
from headrace.store.rows.values import Kind, Lists, NumberKind, is_text, kind_of

__all__ = ["RowFilter", "both", "field_of", "parse_filter"]

DEPTH, CONDITIONS, VALUES = 32, 1_000, 10_000
"""How deep, how long, and with how many values to choose among a filter may be."""
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
    """The condition that a document describes; a RequestError says what is wrong with it."""
    return _Parser(endpoint).filter(document, 1)


def both(one: RowFilter | None, other: RowFilter | None) -> RowFilter | None:
    """What meets both, as for a caller's filter and the rows the caller may see."""
    given = [part for part in (one, other) if part is not None]
    return every(given) if given else None


def field_of(name: str, endpoint: Endpoint) -> Field:
    """The column of that name, or the value within one: `address.city`, `labels.colour`."""
    columns = endpoint.types
    if name in columns:
        return Field((name,), kind_of(columns[name]))
    # names may have dots of their own: the longest column that fits is meant
    for column in sorted((one for one in columns if name.startswith(f"{one}.")), key=len, reverse=True):
        return _inner(Field((column,), kind_of(columns[column])), name[len(column) + 1 :])
    raise _unknown_column(name, endpoint.name, columns)


def _inner(outer: Field, rest: str) -> Field:
    """A value within a struct or a map by the rest of a dotted name."""
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
    if pa.types.is_map(kind) and is_text(name):
        return Field((*outer.path, name), kind_of(kind.item_type))
    if pa.types.is_struct(kind):
        if kind.get_field_index(name) < 0:
            raise _unknown_column(name, str(outer), [field.name for field in kind])
        return Field((*outer.path, name), kind_of(kind.field(name).type))
    raise RequestError(
        "unknown-column",
        f"'{outer}' is {outer.kind.name}: there is no '{name}' in it",
        hint="fields of structs and keys of maps can be named; values of a list are found with $contains",
    )


def _unknown_column(name: str, place: str, known: Iterable[str]) -> RequestError:
    return RequestError(
        "unknown-column",
        f"there is no column '{name[:_SHOWN]}' in '{place}'",
        hint=did_you_mean(name[:_SHOWN], known, f"columns of '{place}'"),
    )


def _bad(message: str, hint: str | None = None) -> RequestError:
    return RequestError("bad-filter", message, hint=hint)


class _Parser:
    """Reads one document. The depth is passed down, so that no document can exhaust the stack."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._conditions = 0

    def filter(self, document: Any, depth: int) -> RowFilter:
        self._check_depth(depth)
        if not isinstance(document, dict):
            raise _bad(
                f"a filter is an object, not {_what(document)}",
                'name columns and what they must be: {"region": "EU", "amount": {"$gt": 10}}',
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
            raise _bad(f"{key} stands for no column", f'it belongs behind one: {{"amount": {{"{key}": …}}}}')
        if key.startswith("$"):
            raise _unknown_operator(key, (*_JOINS, *_ON_FIELDS))
        return self._on_field(field_of(key, self._endpoint), value, depth)

    def _join(self, key: str, value: Any, depth: int) -> RowFilter:
        if not isinstance(value, list) or len(value) < 2:
            raise _bad(f"{key} takes a list of two filters or more, not {_what(value)}")
        parts = [self.filter(one, depth + 1) for one in value]
        return every(parts) if key == "$and" else Or(tuple(parts))

    def _on_field(self, field: Field, value: Any, depth: int) -> RowFilter:
        self._check_depth(depth)
        if isinstance(value, list):
            raise _bad(
                f"a list stands behind '{field}'",
                f'for one of its values: {{"{field}": {{"$in": […]}}}}; for the whole list: {{"$eq": […]}}',
            )
        if not isinstance(value, dict):
            return self._operator(field, "$eq", value, depth)
        if not value:
            raise _bad(f"an empty object stands behind '{field}'", "give a value or an operator")
        if all(key.startswith("$") for key in value):
            return every([self._operator(field, key, given, depth) for key, given in value.items()])
        return self._within(field, value, depth)

    def _within(self, field: Field, value: dict[str, Any], depth: int) -> RowFilter:
        """Fields of a struct or keys of a map, named by a nested object."""
        odd = [key for key in value if key.startswith("$")]
        if odd:
            raise _bad(f"behind '{field}' stand operators and names: {', '.join(value)[:_SHOWN]}")
        if not pa.types.is_struct(field.kind.type) and not pa.types.is_map(field.kind.type):
            raise _unknown_operator(next(iter(value)), _ON_FIELDS)
        # a key of a map may have dots of its own, and is written as it is
        find = _child if pa.types.is_map(field.kind.type) else _inner
        return every([self._on_field(find(field, name), given, depth + 1) for name, given in value.items()])

    def _operator(self, field: Field, key: str, given: Any, depth: int) -> RowFilter:
        self._conditions += 1
        if self._conditions > CONDITIONS:
            raise _bad(f"the filter has more than {CONDITIONS:,} conditions", "use $in for many values of one column")
        match key:
            case "$in":
                return _among(field, given)
            case "$nin":
                return negated(_among(field, given))
            case "$contains" | "$matches_any" | "$matches_all":
                return _search(field, key, given)
            case "$not":
                return self._opposite(field, given, depth)
            case _ if key in _COMPARISONS:
                return _compared(field, key, given)
        raise _unknown_operator(key, _ON_FIELDS)

    def _opposite(self, field: Field, given: Any, depth: int) -> RowFilter:
        if not isinstance(given, dict):
            raise _bad(f"$not of '{field}' takes operators, not {_what(given)}", 'for a value there is {"$ne": …}')
        return negated(self._on_field(field, given, depth + 1))


def _unknown_operator(key: str, known: Iterable[str]) -> RequestError:
    hint = did_you_mean(key[:_SHOWN], known, "operators")
    return RequestError("unknown-operator", f"there is no operator '{key[:_SHOWN]}'", hint=hint)


def _what(value: Any) -> str:
    """What was given, for messages: short however large it is."""
    match value:
        case dict():
            return "an object"
        case list():
            return "a list" if value else "an empty list"
        case int() if value.bit_length() > 256:
            return "a number of very many digits"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _taken(field: Field, kind: Kind, given: Any, take: Callable[[Any], Any]) -> Any:
    """What a caller gives, as a value of that type."""
    try:
        return take(given)
    except ValueError:
        message = f"'{field}' is {field.kind.name}: {kind.wanted} is needed, not {_what(given)}"
        raise _bad(message) from None


def _compared(field: Field, key: str, given: Any) -> RowFilter:
    how = _COMPARISONS[key]
    if given is None:
        return {"=": IsNull(field), "!=": IsNull(field, False)}.get(how, Unknown())
    kind = field.kind
    if isinstance(kind, NumberKind):
        return _number(field, kind, how, _taken(field, kind, given, kind.exact))
    return Compare(field, how, _taken(field, kind, given, kind.take))


def _number(field: Field, kind: NumberKind, how: Comparison, number: Any) -> RowFilter:
    """Any number compared with a column that holds only some: the same question, asked with one of those."""
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


def _among(field: Field, given: Any) -> RowFilter:
    if not isinstance(given, list):
        raise _bad(f"$in and $nin of '{field}' take a list, not {_what(given)}")
    _check_values(field, given)
    values = [_one(field, field.kind, one) for one in given if one is not None]
    return Among(field, frozenset(one for one in values if one is not None), None in given)


def _check_values(field: Field, given: list[Any]) -> None:
    if len(given) > VALUES:
        raise _bad(f"'{field}' is to be one of {len(given):,} values; {VALUES:,} are allowed", "ask several times")


def _one(field: Field, kind: Kind, given: Any) -> Any:
    """A value to be equal to; None for a number that the column cannot hold."""
    if not isinstance(kind, NumberKind):
        return _taken(field, kind, given, kind.take)
    number = _taken(field, kind, given, kind.exact)
    if not kind.low <= number <= kind.high or kind.floor(number) != number:
        return None
    return kind.floor(number)


def _search(field: Field, key: str, given: Any) -> RowFilter:
    """Words in a text, values in a list."""
    if given is None:
        return Unknown()
    kind = field.kind
    if isinstance(kind, Lists):
        return _members(field, kind, key, given)
    if not (pa.types.is_string(kind.type) or pa.types.is_large_string(kind.type)):
        raise _bad(f"{key} looks into texts and lists; '{field}' is {kind.name}")
    texts = given if isinstance(given, list) and key != "$contains" else [given]
    _check_values(field, texts)
    words = frozenset(word for one in texts for word in tokens(_taken(field, kind, one, kind.take)))
    if not words:
        raise _bad(f"{key} of '{field}' has no word in {_what(given)}", "letters and digits make words")
    return WordsFilter(field, words, every=key != "$matches_any")


def _members(field: Field, kind: Lists, key: str, given: Any) -> RowFilter:
    several = given if isinstance(given, list) and key != "$contains" else [given]
    _check_values(field, several)
    values = [_one(field, kind.item, one) for one in several]
    if key != "$matches_any" and None in values:
        return ConstantFilter(field, False)
    return Members(field, frozenset(one for one in values if one is not None), every=key != "$matches_any")
