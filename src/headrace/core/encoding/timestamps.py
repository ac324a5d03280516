"""Points in time as text."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_text(moment: datetime, timespec: str = "seconds") -> str:
    """A point in time as ISO 8601 in UTC, with `Z`."""
    return moment.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def utc_now(timespec: str = "seconds") -> str:
    """The present as ISO 8601 in UTC, with `Z`."""
    return utc_text(datetime.now(UTC), timespec)
