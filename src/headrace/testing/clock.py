"""A clock that only moves when a test says so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from headrace.core.durations import parse_duration


class Clock:
    """Gives the event times of test rows: `clock.now`, then `clock.advance("10s")`."""

    def __init__(self, start: datetime | str = "2026-01-01T00:00:00+00:00") -> None:
        moment = datetime.fromisoformat(start) if isinstance(start, str) else start
        self._now = moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    @property
    def now(self) -> datetime:
        """The current time of the test."""
        return self._now

    @property
    def iso(self) -> str:
        """The current time as a JSON record would have it."""
        return self._now.isoformat()

    def advance(self, by: str | timedelta) -> datetime:
        """Move on, and return the new time."""
        self._now += parse_duration(by)
        return self._now

    def set(self, to: datetime) -> None:
        """Jump, also backwards, as a record that comes late does."""
        self._now = to
