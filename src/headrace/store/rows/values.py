"""Values as callers and stored rows write them in JSON, converted to comparable values for filters and orders.

A comparable value is the Python value itself where Python orders it as the store's keys do; for a list, a struct or a
map it is the key. So a filter that reads rows and an index that reads keys cannot disagree.
"""

from __future__ import annotations

import binascii
import math
import re
import sys
from abc import ABC, abstractmethod
from base64 import b64decode
from datetime import UTC, date, datetime
from decimal import ROUND_FLOOR, Context, Decimal
from functools import lru_cache, total_ordering
from typing import Any

import msgspec
import pyarrow as pa

from headrace.core.schema import ddl_type
from headrace.store.rows.keys import codec
from headrace.store.rows.row_json import typed

_EXACT = Context(prec=200)
_WHOLE = re.compile(r"[+-]?\d{1,60}")
# at most three digits of exponent: with more, exact arithmetic would exhaust the memory
_NUMBER = re.compile(r"[+-]?(\d{1,80}(\.\d{0,80})?|\.\d{1,80})([eE][+-]?\d{1,3})?")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}([Tt ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?([Zz]|[+-]\d{2}:\d{2})?)?")
_ODD_FLOATS = ("NaN", "Infinity", "-Infinity")
_BITS = 512
_LARGEST_SINGLE = (2 - 2**-23) * 2.0**127


@total_ordering
class _NotANumber:
    """Equal to itself and greater than all numbers, as in Spark and in the store's keys."""

    def __eq__(self, other: object) -> bool:
        return other is self

    def __gt__(self, other: object) -> bool:
        return other is not self

    def __hash__(self) -> int:
        return hash("NaN")

    def __repr__(self) -> str:
        return "NaN"


NAN = _NotANumber()


def is_encodable(text: str) -> bool:
    """Whether the text can be encoded: half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Kind(ABC):
    """How values of one type are written in JSON, read and compared."""

    expected: str
    """What a caller has to write, for messages."""
    as_written = False
    """Whether stored values are comparable as they are in the JSON."""

    def __init__(self, kind: pa.DataType) -> None:
        self.type = kind
        self.codec = codec(kind)
        self.typed = typed(kind)

    def read(self, stored: Any) -> Any:
        """The comparable value of a stored value, which is not null."""
        return self.typed(stored)

    @abstractmethod
    def parse(self, value: Any) -> Any:
        """The comparable value of a caller's value; ValueError when it does not have this type."""

    def key(self, comparable: Any) -> bytes:
        """The bytes by which the store sorts a comparable value."""
        return self.codec.encode(comparable)

    @property
    def name(self) -> str:
        return ddl_type(self.type)


class _Booleans(Kind):
    expected = "true or false"
    as_written = True

    def parse(self, value: Any) -> Any:
        if not isinstance(value, bool):
            raise ValueError
        return value


class NumberKind(Kind):
    """Whole numbers and decimals: the values of a column are the multiples of one unit between two limits.

    Callers may compare with other numbers too: `amount > 2.5` has a meaning where amounts are whole.
    """

    scale: int
    low: Any
    high: Any

    def exact(self, value: Any) -> Decimal | int:
        """The caller's number, whatever its size and digits."""
        if isinstance(value, bool):
            raise ValueError
        if isinstance(value, int) and value.bit_length() <= _BITS:
            return value
        if isinstance(value, float) and math.isfinite(value):
            return Decimal(repr(value))
        return self._of_text(value)

    def floor(self, number: Decimal | int) -> Any:
        """The greatest value of the column that is not above the number; the number must be within the limits."""
        if self.scale == 0 and isinstance(number, int) and isinstance(self.low, int):
            return number
        scaled = Decimal(number).scaleb(self.scale, _EXACT).to_integral_value(ROUND_FLOOR, _EXACT)
        return int(scaled) if self.scale == 0 and isinstance(self.low, int) else scaled.scaleb(-self.scale, _EXACT)

    def parse(self, value: Any) -> Any:
        """A number that the column can hold."""
        number = self.exact(value)
        if not self.low <= number <= self.high or self.floor(number) != number:
            raise ValueError
        return self.floor(number)

    def _of_text(self, value: Any) -> Decimal | int:
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            return Decimal(value)
        raise ValueError


class _Integers(NumberKind):
    expected = "a whole number, or its digits as a text"
    as_written = True
    scale = 0

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        signed = pa.types.is_signed_integer(kind)
        self.low = -(1 << (kind.bit_width - 1)) if signed else 0
        self.high = (1 << (kind.bit_width - 1 if signed else kind.bit_width)) - 1

    def _of_text(self, value: Any) -> int:
        if isinstance(value, str) and _WHOLE.fullmatch(value):
            return int(value)
        raise ValueError


class _Decimals(NumberKind):
    expected = "a number, best as a text like '12.50'"

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        self.scale = kind.scale
        self.high = Decimal(10**kind.precision - 1).scaleb(-kind.scale, _EXACT)
        self.low = -self.high


class _Floats(Kind):
    expected = "a number, or one of the texts 'NaN', 'Infinity' and '-Infinity'"

    def parse(self, value: Any) -> Any:
        if value in _ODD_FLOATS:
            return self.read(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError
        largest = _LARGEST_SINGLE if self.type == pa.float32() else sys.float_info.max
        if largest < abs(value) < math.inf:
            raise ValueError
        return self.read(value)

    def read(self, stored: Any) -> Any:
        number = self.typed(stored)
        return NAN if number != number else number

    def key(self, comparable: Any) -> bytes:
        return self.codec.encode(math.nan if comparable is NAN else comparable)


class _Texts(Kind):
    expected = "a text"
    as_written = True

    def parse(self, value: Any) -> Any:
        if not isinstance(value, str) or not is_encodable(value):
            raise ValueError
        return value


class _Bytes(Kind):
    expected = "a text in base64"

    def parse(self, value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError
        try:
            return b64decode(value, validate=True)
        except binascii.Error:
            raise ValueError from None


class _Dates(Kind):
    expected = "a date like '2026-05-01'"

    def parse(self, value: Any) -> Any:
        if not isinstance(value, str) or not _DATE.fullmatch(value):
            raise ValueError
        return date.fromisoformat(value)


class _Instants(Kind):
    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        self._zoned = kind.tz is not None
        example = "2026-05-01T12:00:00Z" if self._zoned else "2026-05-01T12:00:00"
        self.expected = f"a time like '{example}', with at most six digits of a second's fraction"

    def parse(self, value: Any) -> Any:
        if not isinstance(value, str) or not _TIME.fullmatch(value):
            raise ValueError
        time = datetime.fromisoformat(value.upper())
        if time.tzinfo is None:
            return time.replace(tzinfo=UTC) if self._zoned else time
        if not self._zoned:
            raise ValueError
        return time


class _Nested(Kind):
    """Lists, structs and maps: compared as a whole, by their keys."""

    def read(self, stored: Any) -> Any:
        return self.codec.encode(self.typed(stored))

    def key(self, comparable: Any) -> bytes:
        return bytes(comparable)

    def parse(self, value: Any) -> Any:
        return self.codec.encode(self._parse_items(value))

    @abstractmethod
    def _parse_items(self, value: Any) -> Any: ...


class Lists(_Nested):
    """Lists, whose items all have one type."""

    expected = "a list"

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        self.item = kind_of(kind.value_type)

    def _parse_items(self, value: Any) -> Any:
        if not isinstance(value, list):
            raise ValueError
        return [_part(self.item, item) for item in value]


class _Structs(_Nested):
    expected = "an object with the fields of the struct"

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        self._fields = {field.name: kind_of(field.type) for field in kind}

    def _parse_items(self, value: Any) -> Any:
        if not isinstance(value, dict) or not value.keys() <= self._fields.keys():
            raise ValueError
        return {name: _part(kind, value.get(name)) for name, kind in self._fields.items()}


class _Maps(_Nested):
    expected = "an object"

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        self._item = kind_of(kind.item_type)
        self._keys = typed(pa.map_(kind.key_type, pa.null()))

    def _parse_items(self, value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError
        try:
            keys = [next(iter(self._keys({key: None}))) for key in value]
        except (ArithmeticError, msgspec.DecodeError):
            raise ValueError from None
        return [(key, _part(self._item, item)) for key, item in zip(keys, value.values(), strict=True)]


def _part(kind: Kind, value: Any) -> Any:
    """A value within a list, struct or map, in the form of the codecs."""
    if value is None:
        return None
    if isinstance(kind, _Nested):
        return kind._parse_items(value)
    parsed = kind.parse(value)
    return math.nan if parsed is NAN else parsed


@lru_cache(maxsize=4096)
def kind_of(kind: pa.DataType) -> Kind:
    """How values of a type are written and compared; TypeError when the store does not support the type."""
    types = pa.types
    if types.is_boolean(kind):
        return _Booleans(kind)
    if types.is_integer(kind):
        return _Integers(kind)
    if types.is_floating(kind):
        return _Floats(kind)
    if types.is_decimal(kind):
        return _Decimals(kind)
    if types.is_string(kind) or types.is_large_string(kind):
        return _Texts(kind)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _Bytes(kind)
    if types.is_date32(kind):
        return _Dates(kind)
    if types.is_timestamp(kind):
        return _Instants(kind)
    return _nested_kind_of(kind)


def _nested_kind_of(kind: pa.DataType) -> Kind:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return Lists(kind)
    if pa.types.is_struct(kind):
        return _Structs(kind)
    if pa.types.is_map(kind):
        return _Maps(kind)
    raise TypeError(f"values of type {kind} cannot be queried")
