"""A cache of answers, in each Python worker."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from pydantic import Field

from headrace.core.component import Options
from headrace.core.durations import Duration

Value = TypeVar("Value")


class CacheOptions(Options):
    """Keeps answers, so that a key that occurs again soon needs no new request."""

    ttl: Duration = Field(description="How long an answer is used.", examples=["10min"])
    size: int = Field(10_000, gt=0, description="How many answers each Python worker keeps; the least used go first.")


class TtlCache(Generic[Value]):
    """Keeps values for a time, up to a number of them. A time to live of 0 keeps nothing."""

    def __init__(self, seconds: float, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._size, self._clock = seconds, size, clock
        self._kept: OrderedDict[object, tuple[float, Value]] = OrderedDict()

    def get(self, key: object) -> Value | None:
        """The value, unless it is too old."""
        entry = self._kept.get(key)
        if entry is None:
            return None
        if entry[0] <= self._clock():
            del self._kept[key]
            return None
        self._kept.move_to_end(key)
        return entry[1]

    def put(self, key: object, value: Value) -> None:
        if self._seconds <= 0:
            return
        self._kept[key] = (self._clock() + self._seconds, value)
        self._kept.move_to_end(key)
        if len(self._kept) > self._size:
            self._kept.popitem(last=False)

    def __len__(self) -> int:
        return len(self._kept)
