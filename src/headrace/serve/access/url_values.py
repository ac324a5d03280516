"""Values in URLs: `/films/42`, `/visits/7,2026-01-31`, `/films?year=1999`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec
import pyarrow as pa

from headrace.core.endpoints import Endpoint
from headrace.core.errors import RequestError
from headrace.store.rows.row_json import typed
from headrace.store.rows.values import NAN, kind_of

_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_SHORT = 18
"""Digits of a number that always fits 64 bits."""
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def decoded(part: bytes) -> str:
    """A percent-encoded part of a URL as text."""
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise RequestError("bad-address", "the URL is not UTF-8 text", hint="percent-encode UTF-8") from None


@lru_cache(maxsize=1024)
def endpoint_name(part: bytes) -> str:
    """The first segment of a path: the name of an endpoint, if it exists."""
    return decoded(part)


def key_parts(raw: bytes, endpoint: Endpoint) -> list[str]:
    """The parts of a key in a URL. A key of one column includes slashes and commas."""
    parts = [raw] if len(endpoint.key) <= 1 else raw.split(b",")
    if endpoint.key and len(parts) != len(endpoint.key):
        raise RequestError(
            "bad-key",
            f"the key of '{endpoint.name}' has {len(endpoint.key)} parts, not {len(parts)}",
            hint=f"/{endpoint.name}/{','.join(f'<{name}>' for name in endpoint.key)}; write a comma within a part as "
            f"%2C, or /{endpoint.name}/?{'&'.join(f'{name}=' for name in endpoint.key)}",
        )
    return [decoded(part) for part in parts]


class KeyReader:
    """Reads keys of one endpoint from URLs."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._fields = [endpoint.columns.field(name) for name in endpoint.key]
        self._number = len(self._fields) == 1 and self._fields[0].type == pa.int64()

    def raw(self, raw: bytes) -> list[Any]:
        """The key values from the last segment of a path."""
        if self._number and len(raw) <= _SHORT and raw.isdigit():
            return [int(raw)]
        return self.texts(key_parts(raw, self._endpoint))

    def texts(self, parts: Sequence[str]) -> list[Any]:
        """The key values from texts, one for each key column."""
        pairs = zip(parts, self._fields, strict=True)
        return [_typed(json_value(text, field, "bad-key"), text, field) for text, field in pairs]


def _typed(value: Any, text: str, field: pa.Field) -> Any:
    kind = kind_of(field.type)
    try:
        parsed = kind.parse(value)
    except ValueError:
        return _wrong(text, field, "bad-key", kind.expected)
    if pa.types.is_nested(field.type):
        return typed(field.type)(value)
    return math.nan if parsed is NAN else parsed


def json_value(text: str, field: pa.Field, code: str = "bad-value") -> Any:
    """A value of a column, in the form of a JSON filter."""
    types, kind = pa.types, field.type
    if types.is_boolean(kind):
        return _boolean(text, field, code)
    if types.is_integer(kind):
        return int(text) if _WHOLE.fullmatch(text) else _wrong(text, field, code, "a whole number")
    if types.is_floating(kind):
        return _float(text, field, code)
    return _nested(text, field, code) if types.is_nested(kind) else text


def _boolean(text: str, field: pa.Field, code: str) -> bool:
    if text not in ("true", "false"):
        _wrong(text, field, code, "true or false")
    return text == "true"


def _float(text: str, field: pa.Field, code: str) -> Any:
    if text in _NOT_FINITE:
        return text
    number = float(text) if _NUMBER.fullmatch(text) else math.inf
    return number if math.isfinite(number) else _wrong(text, field, code, "a number")


def _nested(text: str, field: pa.Field, code: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return _wrong(text, field, code, "JSON")


def _wrong(text: str, field: pa.Field, code: str, expected: str) -> Any:
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    raise RequestError(code, f"'{shown}' is not a value of '{field.name}'", hint=f"it must be {expected}")
