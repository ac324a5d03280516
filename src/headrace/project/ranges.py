"""Days and hours: as texts in `dates`, and as names of folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta


@dataclass(frozen=True)
class DateRange:
    """Days or hours, both ends included: `begin` up to, not including, `end`."""

    begin: datetime
    end: datetime


def parse_ranges(text: str) -> list[DateRange]:
    """The ranges of `start,end;start,end`, in UTC; a ValueError says what was expected."""
    found = []
    for part in text.split(";"):
        ends = [end.strip() for end in part.split(",")]
        if len(ends) != 2 or not all(ends):
            raise ValueError(f"'{part.strip()}' is not start,end; write e.g. 2026-01-01,2026-01-31")
        (begin, _), (last, length) = _moment(ends[0]), _moment(ends[1])
        end = last + length
        if end <= begin:
            raise ValueError(f"'{part.strip()}' ends before it begins")
        found.append(DateRange(begin, end))
    return found


def _moment(text: str) -> tuple[datetime, timedelta]:
    """A day or an hour, and how long it lasts."""
    try:
        if len(text) == len("2026-01-31"):
            return datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC), timedelta(days=1)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"'{text}' is neither a day nor a time; write 2026-01-31 or 2026-01-31T07") from None
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return zoned.astimezone(UTC).replace(minute=0, second=0, microsecond=0), timedelta(hours=1)


def folder_range(folders: Mapping[str, str]) -> DateRange | None:
    """The day of `dt=2026-01-31`, or the hour when there is `hr=07` too; None without such folders."""
    try:
        day = datetime.combine(date.fromisoformat(folders["dt"]), datetime.min.time(), UTC)
        if "hr" not in folders:
            return DateRange(day, day + timedelta(days=1))
        begin = day + timedelta(hours=int(folders["hr"]))
        return DateRange(begin, begin + timedelta(hours=1))
    except (KeyError, ValueError):
        return None
