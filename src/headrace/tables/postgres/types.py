"""PostgreSQL's types as Arrow types, and parsers of values from the text that the server writes.

Rows of a snapshot and changes of the stream are parsed by the same functions, so they cannot differ. Arrow parses
whole columns of the snapshot where its result is the same; columns that it refuses are parsed value by value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from struct import Struct
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.schema import TIMESTAMP

# the most that Spark can hold
_DIGITS = 38
_FRACTION = 18
_HEADER = 4
"""PostgreSQL adds it to the type modifier of a numeric."""
_PIECE = re.compile(r'[{},]|"(?:[^"\\]|\\.)*"|[^{},"]+', re.DOTALL)
_SINGLE = Struct("f")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
# their arrays have other separators, or are not arrays
_NOT_LISTS = frozenset({"int2vector", "oidvector", "_box"})


@dataclass(frozen=True)
class PgType:
    """A type of PostgreSQL: its Arrow type, and the parser of a value."""

    arrow: pa.DataType
    parse: Callable[[str], Any]
    """The value of a text; raises ValueError or ArithmeticError when Arrow's type has no such value."""
    whole: Callable[[pa.Array], pa.Array] | None = None
    """The same for many at once. It may refuse (ArrowInvalid) what `parse` can read."""

    def column(self, texts: pa.Array) -> pa.Array:
        if self.whole is not None:
            try:
                return self.whole(texts)
            except pa.ArrowInvalid:
                pass
        return pa.array([None if text is None else self.parse(text) for text in texts.to_pylist()], self.arrow)


@dataclass(frozen=True)
class TypeRow:
    """A type in the catalogue."""

    name: str
    builtin: bool
    base: int
    """The base type of a domain; else 0."""
    base_modifier: int
    element: int
    """The element type of an array; else 0."""


Lookup = Callable[[Sequence[int]], Mapping[int, TypeRow]]


class PostgresTypes:
    """The types of one database by oid, loaded when they are first used."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._rows: dict[int, TypeRow] = {}

    def know(self, numbers: Sequence[int]) -> None:
        """Load unknown types in one query."""
        missing = [number for number in numbers if number not in self._rows]
        if missing:
            self._rows |= self._lookup(missing)

    def of(self, number: int, modifier: int, dimensions: int = 1) -> PgType:
        """The type of a column. A type that does not exist any more is read as text."""
        self.know([number])
        row = self._rows.get(number)
        if row is None:
            return TEXT
        if row.base:
            return self.of(row.base, row.base_modifier if modifier == -1 else modifier, dimensions)
        if row.element and row.name not in _NOT_LISTS:
            return _array(self.of(row.element, modifier), max(1, dimensions))
        if row.name == "numeric" and row.builtin:
            return _numeric(*_precision(modifier))
        return _SIMPLE.get(row.name, TEXT) if row.builtin else TEXT


def _cast(arrow: pa.DataType, parse: Callable[[str], Any]) -> PgType:
    return PgType(arrow, parse, lambda texts: pc.cast(texts, arrow))


def _precision(modifier: int) -> tuple[int, int]:
    """Precision and scale. Without any, 18 digits after the point leave room for 20 before it."""
    if modifier < _HEADER:
        return _DIGITS, _FRACTION
    precision = (modifier - _HEADER) >> 16
    scale = (((modifier - _HEADER) & 0x7FF) ^ 1024) - 1024
    if scale < 0:
        return min(_DIGITS, precision - scale), 0
    return min(_DIGITS, max(precision, scale)), min(_DIGITS, scale)


def _numeric(precision: int, scale: int) -> PgType:
    """Rounded as PostgreSQL would; NaN and infinities, which no decimal has, are null."""
    context = Context(prec=precision, rounding=ROUND_HALF_UP)
    step = Decimal(1).scaleb(-scale)

    def parse(text: str) -> Decimal | None:
        value = Decimal(text)
        return context.quantize(value, step) if value.is_finite() else None

    return _cast(pa.decimal128(precision, scale), parse)


def _single(text: str) -> float:
    """Rounded to four bytes, so that all readers get the same number."""
    rounded: float = _SINGLE.unpack(_SINGLE.pack(float(text)))[0]
    return rounded


def _date(text: str) -> date:
    """An infinite date becomes the last or first possible one, which keeps the order."""
    if text.endswith("infinity"):
        return date.min if text[0] == "-" else date.max
    return date.fromisoformat(text)


def _timestamp(text: str) -> datetime:
    if text.endswith("infinity"):
        return datetime.min if text[0] == "-" else datetime.max
    return datetime.fromisoformat(text)


def _moment(text: str) -> datetime:
    moment = _timestamp(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text[2:])


def _point(text: str) -> dict[str, float]:
    x, _, y = text[1:-1].partition(",")
    return {"x": float(x), "y": float(y)}


def _array(element: PgType, dimensions: int) -> PgType:
    arrow, parse = element.arrow, element.parse
    for _ in range(dimensions):
        arrow = pa.list_(arrow)

    def value(piece: str) -> Any:
        if piece == "NULL":
            return None
        return parse(_ESCAPED.sub(r"\1", piece[1:-1]) if piece[0] == '"' else piece)

    def read(text: str) -> list[Any]:
        levels: list[list[Any]] = [[]]
        # "[0:1]={1,2}": the bounds do not matter
        for piece in _PIECE.findall(text.partition("=")[2] if text[0] == "[" else text):
            if piece == "{":
                levels.append([])
            elif piece == "}":
                done = levels.pop()
                levels[-1].append(done)
            elif piece != ",":
                if len(levels) != dimensions + 1:
                    raise ValueError(f"an array of {len(levels) - 1} dimensions, where the column says {dimensions}")
                levels[-1].append(value(piece))
        return levels[0][0]  # type: ignore[no-any-return]

    return PgType(arrow, read)


TEXT = PgType(pa.string(), str, lambda texts: texts)
_SIMPLE = {
    "bool": PgType(pa.bool_(), lambda text: text == "t", lambda texts: pc.equal(texts, "t")),
    "int2": _cast(pa.int16(), int),
    "int4": _cast(pa.int32(), int),
    "int8": _cast(pa.int64(), int),
    "oid": _cast(pa.int64(), int),
    "float4": _cast(pa.float32(), _single),
    "float8": _cast(pa.float64(), float),
    # trailing blanks are insignificant in PostgreSQL, and its cast to text drops them
    "bpchar": PgType(pa.string(), lambda text: text.rstrip(" "), lambda texts: pc.utf8_rtrim(texts, characters=" ")),
    "bytea": PgType(pa.binary(), _bytes),
    "date": _cast(pa.date32(), _date),
    "timestamp": _cast(pa.timestamp("us"), _timestamp),
    "timestamptz": _cast(TIMESTAMP, _moment),
    "point": PgType(pa.struct([("x", pa.float64()), ("y", pa.float64())]), _point),
}
