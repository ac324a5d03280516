"""Pauses between attempts, which double from attempt to attempt."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

_LARGEST_EXPONENT = 20


@dataclass(frozen=True)
class Backoff:
    """The pause after each failed attempt: `first` seconds, then twice the pause before, at most `longest`.

    `jitter` is the range of a random factor: clients that failed together should not retry together.
    """

    first: float
    longest: float
    jitter: tuple[float, float] = (1.0, 1.0)

    def pause(self, failures: int) -> float:
        """Seconds to wait before the next attempt, after `failures` earlier failures."""
        seconds = min(self.first * 2.0 ** min(max(failures, 0), _LARGEST_EXPONENT), self.longest)
        return seconds * random.uniform(*self.jitter)  # noqa: S311

    def within(self, seconds: float) -> Retries:
        """Attempts that end after so many seconds."""
        return Retries(self, seconds)


@dataclass
class Retries:
    """The attempts of one call, until a deadline."""

    backoff: Backoff
    seconds: float
    _failures: int = field(default=0, init=False)
    _deadline: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Start over, after an attempt that succeeded."""
        self._failures = 0
        self._deadline = time.monotonic() + self.seconds

    def wait(self, requested: float | None = None, at_least: float = 0.0) -> bool:
        """Sleep until the next attempt; False, at once, when it would be after the deadline.

        `requested` replaces the pause, `at_least` only extends it.
        """
        pause = max(self.backoff.pause(self._failures) if requested is None else requested, at_least)
        if time.monotonic() + pause > self._deadline:
            return False
        time.sleep(pause)
        self._failures += 1
        return True
