"""Columns of MySQL and MariaDB: their types, and the conversion of values from queries and from the binlog.

Both sources give the same value in different forms. The conversion makes them equal, so that a row that was read twice
is recognised.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.core.errors import ProjectError
from headrace.core.schema import TIMESTAMP

Convert = Callable[[Any], Any]

_INTEGERS = {
    "tinyint": (pa.int8(), pa.int16()),
    "smallint": (pa.int16(), pa.int32()),
    "mediumint": (pa.int32(), pa.int32()),
    "int": (pa.int32(), pa.int64()),
    "bigint": (pa.int64(), pa.decimal128(20, 0)),
}
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum"})
_BINARIES = frozenset({"varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_MOST_DIGITS, _ALL_BITS = 38, 64
_MEMBER = re.compile(r"'((?:[^']|'')*)'")
_NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class MyColumn:
    """One column, as `information_schema` has it."""

    name: str
    data_type: str
    """`decimal`."""
    column_type: str
    """`decimal(10,2) unsigned`."""
    nullable: bool
    default: str | None
    length: int | None = None
    """Of texts and binaries, in bytes."""
    precision: int | None = None
    scale: int | None = None

    @property
    def appears_empty(self) -> bool:
        """Whether existing rows have null in it when it is added."""
        return self.nullable and self.default in (None, "NULL")

    @property
    def query(self) -> str:
        name = quoted(self.name)
        # a float is printed with six digits unless it is cast to a double
        return f"{name} + 0e0" if self.data_type == "float" else name

    def arrow(self, table: str) -> pa.DataType:
        """The Arrow type; raises a ProjectError for a type that is not supported."""
        kind = self._number() or self._other()
        if kind is None:
            raise ProjectError(
                "mysql-type",
                f"column '{self.name}' of '{table}' is {self.column_type}, which is not supported",
                hint="capture a table without it, or with a generated column of another type instead",
            )
        return kind

    def _number(self) -> pa.DataType | None:
        kind, unsigned = self.data_type, "unsigned" in self.column_type
        if kind in _INTEGERS:
            return _INTEGERS[kind][unsigned]
        if kind == "decimal":
            fits = (self.precision or 0) <= _MOST_DIGITS
            return pa.decimal128(self.precision or 10, self.scale or 0) if fits else pa.string()
        if kind == "bit":
            bits = self.precision or 1
            return pa.bool_() if bits == 1 else pa.int64() if bits < _ALL_BITS else pa.decimal128(20, 0)
        return {"float": pa.float32(), "double": pa.float64(), "year": pa.int16()}.get(kind)

    def _other(self) -> pa.DataType | None:
        kind = self.data_type
        if kind in _TEXTS or kind in ("set", "json", "time"):
            return pa.string()
        if kind in _BINARIES or kind == "binary":
            return pa.binary()
        return {"date": pa.date32(), "datetime": pa.timestamp("us"), "timestamp": TIMESTAMP}.get(kind)

    def convert(self) -> Convert | None:
        """The conversion of values other than null; None when none is needed."""
        kind = self.data_type
        if kind == "decimal":
            return None if (self.precision or 0) <= _MOST_DIGITS else str
        if kind == "bigint":
            return Decimal if "unsigned" in self.column_type else None
        if kind == "bit":
            return _bits if (self.precision or 1) > 1 else lambda value: bool(_bits(value))
        if kind == "set":
            return _members([member.replace("''", "'") for member in _MEMBER.findall(self.column_type)])
        if kind == "binary":
            size = self.length or 0
            # the binlog omits trailing zeros
            return lambda value: value.ljust(size, b"\0")
        if kind in _TEXTS:
            return _text
        return _OTHERS.get(kind)


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("a text in an unknown character set")


def _bits(value: Any) -> int:
    return int(value, 2) if isinstance(value, str) else int.from_bytes(value, "big")


def _members(known: list[str]) -> Convert:
    """A set as MySQL writes it: in the order of its definition."""
    return lambda value: value if isinstance(value, str) else ",".join(member for member in known if member in value)


def _date(value: Any) -> date | None:
    return value if isinstance(value, date) else None  # 0000-00-00 is no date


def _local(value: Any) -> datetime | None:
    return value if isinstance(value, datetime) else None


def _instant(value: Any) -> datetime | None:
    moment = value.replace(tzinfo=UTC) if isinstance(value, datetime) else _NO_TIME
    return None if moment == _NO_TIME else moment  # the smallest valid value is one second later


def _year(value: int) -> int:
    return 0 if value == 1900 else value  # 0000, which is 0 years after 1900 in the binlog


def _time(value: timedelta) -> str:
    """`-838:59:59`, with a fraction unless it is 0."""
    size = abs(value)
    seconds, fraction = size // timedelta(seconds=1), size % timedelta(seconds=1)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    if fraction:
        text += f".{fraction // timedelta(microseconds=1):06d}"
    return f"-{text}" if value < timedelta(0) else text


def _json(value: Any) -> str:
    """JSON in a canonical form."""
    document = json.loads(value) if isinstance(value, str) else _decoded(value)
    return json.dumps(document, ensure_ascii=False, sort_keys=True, default=str)


def _decoded(value: Any) -> Any:
    match value:
        case bytes():
            return value.decode()
        case dict():
            return {_decoded(name): _decoded(element) for name, element in value.items()}
        case list():
            return [_decoded(element) for element in value]
    return value


_OTHERS: dict[str, Convert] = {
    "date": _date,
    "datetime": _local,
    "timestamp": _instant,
    "year": _year,
    "time": _time,
    "json": _json,
}
