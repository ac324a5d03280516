"""Trying again while a service is away."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

_FIRST_WAIT = 0.1
_LONGEST_WAIT = 5.0


@dataclass
class Patience:
    """How long one call may be tried again. Made anew for every call."""

    seconds: float
    _until: float = 0.0
    _wait: float = field(default=_FIRST_WAIT)

    def __post_init__(self) -> None:
        self._until = time.monotonic() + self.seconds

    def wait(self, asked: float | None = None) -> bool:
        """Wait before the next try, as long as the service asks for if it does; False when patience has run out."""
        left = self._until - time.monotonic()
        # several tasks that lost the same service should not come back at the same moment
        pause = min(self._wait * random.uniform(0.5, 1.0), _LONGEST_WAIT) if asked is None else asked  # noqa: S311
        self._wait = min(self._wait * 2, _LONGEST_WAIT)
        if pause > left:
            return False
        time.sleep(pause)
        return True
