"""Durations such as `500ms`, `10s`, `10 seconds`, `5min`, `1h 30m` and `1d`."""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_MILLISECONDS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]+)\s*")
_EXAMPLES = "e.g. 500ms, 10s, 5min, 1h, 1d"
_LONGEST = timedelta(days=36_500)


def parse_duration(value: object) -> timedelta:
    """Parse a duration. Raises ValueError, which names the expected form, unless it is a positive duration."""
    if isinstance(value, timedelta):
        return value
    text = str(value).strip()
    milliseconds = _milliseconds(text)
    if not text or milliseconds <= 0:
        raise ValueError(f"'{text}' is not a positive duration; write {_EXAMPLES}")
    if milliseconds.denominator != 1:
        raise ValueError(f"'{text}' is finer than a millisecond; write {_EXAMPLES}")
    if milliseconds > _LONGEST // timedelta(milliseconds=1):
        raise ValueError(f"'{text}' is longer than a hundred years; write {_EXAMPLES}")
    return timedelta(milliseconds=int(milliseconds))


def _milliseconds(text: str) -> Fraction:
    position, total = 0, Fraction(0)
    while position < len(text):
        part = _PART.match(text, position)
        unit = None if part is None else _MILLISECONDS.get(part[2].lower())
        if part is None or unit is None:
            raise ValueError(f"'{text}' is not a duration; write a number and a unit, {_EXAMPLES}")
        total += Fraction(part[1]) * unit
        position = part.end()
    return total


def format_duration(value: timedelta) -> str:
    """Return the shortest exact text, such as `90s`, `1500ms` or `2h`."""
    milliseconds = round(value.total_seconds() * 1000)
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


def spark_interval(value: timedelta) -> str:
    """Return the interval in Spark's syntax, such as `1500 milliseconds`."""
    return f"{round(value.total_seconds() * 1000)} milliseconds"


def _validate(value: Any) -> timedelta:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f"{value} has no unit; write e.g. {value}s or {value}ms")
    return parse_duration(value)


Duration = Annotated[
    timedelta,
    BeforeValidator(_validate),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["500ms", "10s", "5min", "1h"]}),
]
