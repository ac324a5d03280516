"""Which rows are the first of their key, on whole arrays. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

# keys with more passing rows than this in one batch are processed row by row
_ROUNDS = 8


@dataclass(frozen=True)
class SeenKeys:
    """Rows that have passed: the two halves of their keys' hashes, and their times."""

    high: Numbers
    low: Numbers
    time: Numbers

    def __len__(self) -> int:
        return len(self.time)

    @staticmethod
    def none() -> SeenKeys:
        empty = np.zeros(0, np.int64)
        return SeenKeys(empty, empty, empty)

    @staticmethod
    def of(parts: list[SeenKeys]) -> SeenKeys:
        if not parts:
            return SeenKeys.none()
        return SeenKeys(
            np.concatenate([part.high for part in parts]),
            np.concatenate([part.low for part in parts]),
            np.concatenate([part.time for part in parts]),
        )

    def where(self, chosen: Flags | Numbers) -> SeenKeys:
        return SeenKeys(self.high[chosen], self.low[chosen], self.time[chosen])

    def to_bytes(self) -> bytes:
        """24 bytes per row."""
        return np.column_stack([self.high, self.low, self.time]).astype("<i8").tobytes()

    @staticmethod
    def from_bytes(data: bytes) -> SeenKeys:
        table = np.frombuffer(data, dtype="<i8").reshape(-1, 3)
        return SeenKeys(table[:, 0], table[:, 1], table[:, 2])


def first_rows(rows: SeenKeys, known: SeenKeys, ttl: int) -> Flags:
    """Which rows pass: those that are at least `ttl` away in time from every row of their key that has passed.

    Rows are processed in the order of their times; rows of the same time in the order of the array. The rows in `known`
    have passed before, whatever their time.
    """
    passed = np.zeros(len(rows), np.bool_)
    if not len(rows):
        return passed
    known = known.where(np.isin(known.high, rows.high))
    key, known_key = _numbered(rows, known)
    order = np.lexsort((rows.time, key))
    key, time = key[order], rows.time[order]
    free = ~_near(key, time, known_key, known.time, ttl)
    passed[order[free]] = _spaced(key[free], time[free], ttl)
    return passed


def _numbered(rows: SeenKeys, known: SeenKeys) -> tuple[Numbers, Numbers]:
    """Keys as small numbers, equal where both halves of the hash are equal."""
    both = np.empty(len(rows) + len(known), dtype=[("high", np.int64), ("low", np.int64)])
    both["high"] = np.concatenate([rows.high, known.high])
    both["low"] = np.concatenate([rows.low, known.low])
    order = np.lexsort((both["low"], both["high"]))
    ordered = both[order]
    changes = np.ones(len(both), np.int64)
    changes[1:] = ordered[1:] != ordered[:-1]
    numbers = np.empty(len(both), np.int64)
    numbers[order] = np.cumsum(changes) - 1
    return numbers[: len(rows)], numbers[len(rows) :]


def _near(key: Numbers, time: Numbers, known_key: Numbers, known_time: Numbers, ttl: int) -> Flags:
    """Whether a known row of the same key is less than `ttl` away."""
    near = np.zeros(len(key), np.bool_)
    if not len(known_key):
        return near
    merged = np.lexsort((np.concatenate([np.zeros(len(known_key), np.int8), np.ones(len(key), np.int8)]),
                         np.concatenate([known_time, time]), np.concatenate([known_key, key])))  # fmt: skip
    is_known = merged < len(known_key)
    keys = np.concatenate([known_key, key])[merged]
    times = np.concatenate([known_time, time])[merged]
    place = np.arange(len(merged))
    before = np.maximum.accumulate(np.where(is_known, place, -1))
    after = np.minimum.accumulate(np.where(is_known, place, len(merged))[::-1])[::-1]
    close = np.zeros(len(merged), np.bool_)
    for neighbour, exists in ((before, before >= 0), (after, after < len(merged))):
        at = np.where(exists, neighbour, 0)
        close |= exists & (keys[at] == keys) & (np.abs(times - times[at]) < ttl)
    near[merged[~is_known] - len(known_key)] = close[~is_known]
    return near


def _spaced(key: Numbers, time: Numbers, ttl: int) -> Flags:
    """The first row of each key, then each that is `ttl` or more after the last passed one. Sorted by key and time."""
    taken = np.zeros(len(key), np.bool_)
    left = np.arange(len(key))
    for _ in range(_ROUNDS):
        if not len(left):
            return taken
        starts = np.ones(len(left), np.bool_)
        starts[1:] = key[left][1:] != key[left][:-1]
        taken[left[starts]] = True
        last = time[left[starts]][np.cumsum(starts) - 1]
        left = left[time[left] - last >= ttl]
    _row_by_row(key, time, ttl, left, taken)
    return taken


def _row_by_row(key: Numbers, time: Numbers, ttl: int, left: Numbers, taken: Flags) -> None:
    current, last = None, 0
    for index in left.tolist():
        if key[index] != current or time[index] - last >= ttl:
            current, last = key[index], time[index]
            taken[index] = True
