"""Conversion of values from JSON and services to the type of a column."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

Convert = Callable[[Any], Any]

_INTEGER = re.compile(r"\s*[+-]?\d+\s*")
_BITS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_EXACT = Context(prec=100)
_LONGEST = 80


class UnfitValueError(ValueError):
    """A value that cannot be converted to the type of its column."""


def converter(kind: pa.DataType) -> Convert:
    """Return the conversion to a column of this type. None stays None; the conversion raises UnfitValueError."""
    convert = _converter(kind)
    return lambda value: None if value is None else convert(value)


def _converter(kind: pa.DataType) -> Convert:
    if pa.types.is_string(kind) or pa.types.is_null(kind):
        return as_text
    if kind in _BITS:
        return _integers(_BITS[kind])
    if pa.types.is_floating(kind):
        return _float
    if pa.types.is_boolean(kind):
        return _boolean
    if pa.types.is_decimal(kind):
        return _decimals(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return _timestamp if kind.tz else lambda value: _timestamp(value).replace(tzinfo=None)
    if pa.types.is_date(kind):
        return _date
    if pa.types.is_binary(kind):
        return _binary
    return _nested(kind)


def _nested(kind: pa.DataType) -> Convert:
    if pa.types.is_list(kind):
        return _lists(converter(kind.value_type))
    if pa.types.is_struct(kind):
        return _structs({field.name: converter(field.type) for field in kind})
    if pa.types.is_map(kind):
        return _maps(converter(kind.key_type), converter(kind.item_type))
    raise TypeError(f"columns of type {kind} are not supported")


def as_text(value: Any) -> str:
    """Return a text unchanged, and every other value as JSON."""
    match value:
        case str():
            return value
        case bytes() | bytearray() | memoryview():
            try:
                return bytes(value).decode()
            except UnicodeDecodeError:
                raise UnfitValueError("the bytes are not UTF-8 text") from None
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bool() | int() | float() | list() | dict() | tuple():
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=as_text)
    return str(value)


def _integers(bits: int) -> Convert:
    limit = 2 ** (bits - 1)

    def integer(value: Any) -> int:
        number = _integer(value)
        if not -limit <= number < limit:
            raise UnfitValueError(f"{number} is too large for {bits} bits")
        return number

    return integer


def _integer(value: Any) -> int:
    match value:
        case bool():
            pass
        case int():
            return value
        case float() if value.is_integer():
            return int(value)
        case Decimal() if value.is_finite() and value == value.to_integral_value():
            return int(value)
        case str() if _INTEGER.fullmatch(value) and len(value) < _LONGEST:
            return int(value)
    raise unfit_value(value, "a whole number")


def _float(value: Any) -> float:
    match value:
        case bool():
            pass
        case int() | float() | Decimal():
            try:
                return float(value)
            except OverflowError:
                pass
        case str():
            try:
                return float(value)
            except ValueError:
                pass
    raise unfit_value(value, "a number")


def _boolean(value: Any) -> bool:
    match value:
        case bool():
            return value
        case "true" | "false":
            return bool(value == "true")
    raise unfit_value(value, "true or false")


def _decimals(precision: int, scale: int) -> Convert:
    step = Decimal(1).scaleb(-scale)
    limit = Decimal(10) ** (precision - scale)

    def decimal(value: Any) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
            raise unfit_value(value, "a number")
        try:
            exact = Decimal(value) if isinstance(value, int | Decimal) else Decimal(str(value).strip())
            number = exact.quantize(step, rounding=ROUND_HALF_UP, context=_EXACT)
        except InvalidOperation:
            raise unfit_value(value, "a number") from None
        if not abs(number) < limit:
            raise UnfitValueError(f"{_short(value)} is too large for decimal({precision},{scale})")
        return number

    return decimal


def _timestamp(value: Any) -> datetime:
    match value:
        case datetime():
            moment = value
        case str():
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                raise unfit_value(value, "a time like 2026-01-31T12:00:00Z") from None
        case _:
            raise unfit_value(value, "a time like 2026-01-31T12:00:00Z")
    # without a zone it is UTC
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _date(value: Any) -> date:
    match value:
        case datetime():
            return value.date()
        case date():
            return value
        case str():
            try:
                return date.fromisoformat(value)
            except ValueError:
                pass
    raise unfit_value(value, "a date like 2026-01-31")


def _binary(value: Any) -> bytes:
    """Return bytes; in JSON they are base64."""
    match value:
        case bytes() | bytearray() | memoryview():
            return bytes(value)
        case str():
            try:
                return base64.b64decode(value, validate=True)
            except binascii.Error:
                pass
    raise unfit_value(value, "bytes in base64")


def _lists(item: Convert) -> Convert:
    def elements(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise unfit_value(value, "a list")
        return [item(element) for element in value]

    return elements


def _structs(fields: dict[str, Convert]) -> Convert:
    def struct(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise unfit_value(value, "an object")
        return {name: convert(value.get(name)) for name, convert in fields.items()}

    return struct


def _maps(key: Convert, item: Convert) -> Convert:
    def pairs(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, dict):
            raise unfit_value(value, "an object")
        return [(key(name), item(element)) for name, element in value.items()]

    return pairs


def unfit_value(value: Any, expected: str) -> UnfitValueError:
    return UnfitValueError(f"{_short(value)} is not {expected}")


def _short(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = repr(value) if isinstance(value, str | bytes) else as_text(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
