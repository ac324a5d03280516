"""Ranges of days and hours, from `dates` and from folder names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta


@dataclass(frozen=True)
class DateRange:
    """A range of days or hours, from `begin` (inclusive) to `end` (exclusive)."""

    begin: datetime
    end: datetime


def parse_ranges(text: str) -> list[DateRange]:
    """Parse `start,end;start,end`, in UTC, both ends included. Raises ValueError with the expected form."""
    ranges = []
    for part in text.split(";"):
        ends = [end.strip() for end in part.split(",")]
        if len(ends) != 2 or not all(ends):
            raise ValueError(f"'{part.strip()}' is not start,end; write e.g. 2026-01-01,2026-01-31")
        (begin, _), (last, length) = _day_or_hour(ends[0]), _day_or_hour(ends[1])
        end = last + length
        if end <= begin:
            raise ValueError(f"'{part.strip()}' ends before it begins")
        ranges.append(DateRange(begin, end))
    return ranges


def _day_or_hour(text: str) -> tuple[datetime, timedelta]:
    """A day or an hour, and its length."""
    try:
        if len(text) == len("2026-01-31"):
            return datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC), timedelta(days=1)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"'{text}' is neither a day nor a time; write 2026-01-31 or 2026-01-31T07") from None
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return zoned.astimezone(UTC).replace(minute=0, second=0, microsecond=0), timedelta(hours=1)


def folder_range(folders: Mapping[str, str]) -> DateRange | None:
    """The day of `dt=2026-01-31`, or the hour if there is `hr=07` too; None without such folders."""
    try:
        day = datetime.combine(date.fromisoformat(folders["dt"]), datetime.min.time(), UTC)
        if "hr" not in folders:
            return DateRange(day, day + timedelta(days=1))
        begin = day + timedelta(hours=int(folders["hr"]))
        return DateRange(begin, begin + timedelta(hours=1))
    except (KeyError, ValueError):
        return None
