"""A clock that only a test moves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from headrace.core.options.durations import parse_duration


class Clock:
    """The event times of test rows.

    >>> clock = Clock("2026-01-01T00:00:00+00:00")
    >>> _ = clock.advance("1m 30s")
    >>> clock.iso
    '2026-01-01T00:01:30+00:00'
    """

    def __init__(self, start: datetime | str = "2026-01-01T00:00:00+00:00") -> None:
        time = datetime.fromisoformat(start) if isinstance(start, str) else start
        self._now = time if time.tzinfo else time.replace(tzinfo=UTC)

    @property
    def now(self) -> datetime:
        """The current time."""
        return self._now

    @property
    def iso(self) -> str:
        """The current time as a JSON record has it."""
        return self._now.isoformat()

    def advance(self, by: str | timedelta) -> datetime:
        """Move forward; returns the new time."""
        self._now += parse_duration(by)
        return self._now

    def set(self, to: datetime) -> None:
        """Set the time, also backwards, e.g. for a late record."""
        self._now = to
