"""Converts Python type hints to Arrow types, and values between the two."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Union, get_args, get_origin

import pyarrow as pa

from headrace.core.schema import TIMESTAMP, from_ddl

_SIMPLE: dict[Any, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime: TIMESTAMP,
    date: pa.date32(),
    Decimal: pa.decimal128(38, 18),
}
Convert = Callable[[Any], Any] | None
"""Converts a value; None if it stays unchanged."""


class HintError(Exception):
    """A hint that has no column type."""


def arrow_type(hint: Any) -> pa.DataType:
    hint = _bare(hint)
    if isinstance(hint, str):
        return from_ddl(f"r {hint}").field(0).type
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin is list and inner:
        return pa.list_(arrow_type(inner[0]))
    if origin is dict and inner:
        return pa.map_(arrow_type(inner[0]), arrow_type(inner[1]))
    fields = _fields(hint)
    if fields is not None:
        return pa.struct([(name, arrow_type(kind)) for name, kind in fields.items()])
    raise HintError(f"'{getattr(hint, '__name__', hint)}' is not a type of a column")


def is_optional(hint: Any) -> bool:
    """Whether a value may be None."""
    return type(None) in get_args(hint) and _is_union(hint)


def annotated_type(hint: Any) -> str | None:
    """The type that `Annotated[pa.Array, "double"]` names."""
    if get_origin(hint) is not Annotated:
        return None
    return next((part for part in get_args(hint)[1:] if isinstance(part, str)), None)


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _bare(hint: Any) -> Any:
    """A hint without Optional and Annotated; if Annotated names a Spark type, that text."""
    if get_origin(hint) is Annotated:
        return annotated_type(hint) or _bare(get_args(hint)[0])
    if _is_union(hint):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        if len(kinds) == 1:
            return _bare(kinds[0])
    return hint


def _fields(hint: Any) -> dict[str, Any] | None:
    """The fields of a dataclass or TypedDict, which are structs."""
    if dataclasses.is_dataclass(hint) or typing.is_typeddict(hint):
        return typing.get_type_hints(hint, include_extras=True)
    return None


def from_arrow(hint: Any) -> Convert:
    """Converts a value of Arrow to the type of the hint."""
    hint = _bare(hint)
    origin, inner = get_origin(hint), get_args(hint)
    if origin is list:
        return _of_list(from_arrow(inner[0]))
    if origin is dict:
        each = from_arrow(inner[1]) or _same
        return _unless_none(lambda value: {key: each(item) for key, item in value})
    fields = _fields(hint)
    if fields is None:
        return None
    parts = {name: from_arrow(kind) or _same for name, kind in fields.items()}
    make: Callable[..., Any] = hint if dataclasses.is_dataclass(hint) else dict  # type: ignore[assignment]
    return _unless_none(lambda value: make(**{name: part(value[name]) for name, part in parts.items()}))


def to_arrow(hint: Any) -> Convert:
    """Converts a value of the hint's type for Arrow."""
    hint = _bare(hint)
    origin, inner = get_origin(hint), get_args(hint)
    if origin is list:
        return _of_list(to_arrow(inner[0]))
    if origin is dict:
        each = to_arrow(inner[1]) or _same
        return _unless_none(lambda value: [(key, each(one)) for key, one in value.items()])
    fields = _fields(hint)
    if fields is None:
        return None
    parts = {name: to_arrow(kind) or _same for name, kind in fields.items()}
    if dataclasses.is_dataclass(hint):
        return _unless_none(lambda value: {name: part(getattr(value, name)) for name, part in parts.items()})
    return _unless_none(lambda value: {name: part(value.get(name)) for name, part in parts.items()})


def _of_list(each: Convert) -> Convert:
    return None if each is None else _unless_none(lambda value: [each(one) for one in value])


def _same(value: Any) -> Any:
    return value


def _unless_none(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)
