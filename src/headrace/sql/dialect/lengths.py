"""Dagger's intervals as Spark durations."""

from __future__ import annotations

import re

_UNITS = {"SECOND": 1_000_000, "MINUTE": 60_000_000, "HOUR": 3_600_000_000, "DAY": 86_400_000_000}
_NAMES = (("days", 86_400_000_000), ("hours", 3_600_000_000), ("minutes", 60_000_000), ("seconds", 1_000_000))
_INTERVAL = re.compile(
    r"INTERVAL\s*(?:'\s*(?P<text>[\d:. ]+?)\s*'|(?P<number>\d+))\s*(?P<unit>[A-Z]+?)S?(?:\s+TO\s+(?P<to>[A-Z]+?)S?)?",
    re.IGNORECASE,
)


def spark_length(interval: str) -> str | None:
    """`INTERVAL '60' SECOND` as `60 seconds`; None if it is not a literal of whole microseconds.

    Months and years have no fixed length, so windows do not support them.
    """
    match = _INTERVAL.fullmatch(" ".join(interval.split()))
    if match is None or match["unit"].upper() not in _UNITS:
        return None
    value, unit = match["text"] or match["number"], match["unit"].upper()
    total = _span(value, unit, match["to"].upper()) if match["to"] else _single(value, unit)
    return None if total is None or total <= 0 else _words(total)


def _single(value: str, unit: str) -> int | None:
    if not re.fullmatch(r"\d{1,9}(\.\d{1,6})?", value) or ("." in value and unit != "SECOND"):
        return None
    whole, _, fraction = value.partition(".")
    return int(whole) * _UNITS[unit] + int(fraction.ljust(6, "0") or 0)


def _span(value: str, first: str, last: str) -> int | None:
    """`'1:30' MINUTE TO SECOND`."""
    units = ["DAY", "HOUR", "MINUTE", "SECOND"]
    if last not in units or units.index(last) <= units.index(first):
        return None
    names = units[units.index(first) : units.index(last) + 1]
    parts = re.split(r"[ :]", value)
    if len(parts) != len(names):
        return None
    lengths = [_single(part, name) for part, name in zip(parts, names, strict=True)]
    return None if None in lengths else sum(length for length in lengths if length is not None)


def _words(total: int) -> str:
    """As text in the largest unit without a fraction."""
    for name, size in _NAMES:
        if total % size == 0:
            return f"{total // size} {name}"
    return f"{total // 1000} milliseconds" if total % 1000 == 0 else f"{total} microseconds"
