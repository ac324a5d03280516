"""Which earlier events of its key an event sees. Pure, on sorted arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class TimeRanges:
    """For each new event the time range, both ends inclusive, of the events that it sees."""

    since: Numbers
    until: Numbers


def seen_by(past: Numbers, new: Numbers, looks: TimeRanges, limit: int | None, with_self: bool) -> list[Numbers]:
    """For each new event, in order, the places of the events that it sees in `past` followed by `new`, newest first.

    Both are times in ascending order. A new event sees past events and the new ones before it. Of two events with the
    same time, the one that arrived later is the newer.
    """
    times = np.concatenate([past, new])
    found = []
    for index in range(len(new)):
        since, until = looks.since[index], looks.until[index]
        old = np.arange(np.searchsorted(past, since, "left"), np.searchsorted(past, until, "right"))
        before = new[: index + 1] if with_self else new[:index]
        own = np.arange(np.searchsorted(before, since, "left"), np.searchsorted(before, until, "right")) + len(past)
        places = np.concatenate([old, own])
        newest_first = places[np.argsort(times[places], kind="stable")][::-1]
        found.append(newest_first if limit is None else newest_first[:limit])
    return found
