"""Timers of keys, by slices of time, in Spark's state.

Spark's own time to live would run empty batches for ever, and checking every key in every batch would cost as much as
there are keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

Key = tuple[int, int]
"""The two halves of a key's hash."""


class Timers:
    """The keys that are due in each slice of time. A slice holds its keys in parts, one per call of `add`."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._timers = handle.getMapState("agenda", "slice bigint, part bigint", "keys binary")
        self._parts = handle.getValueState("parts", "parts string")

    def add(self, keys: Mapping[int, Sequence[Key]]) -> None:
        if not keys:
            return
        parts = self._read()
        for slice_, mine in keys.items():
            part = parts.get(slice_, 0)
            self._timers.updateValue((slice_, part), (numbers([half for key in mine for half in key]),))
            parts[slice_] = part + 1
        self._write(parts)

    def take(self, is_due: Callable[[int], bool]) -> Iterator[tuple[int, Key]]:
        """Remove and return the keys of all slices that are due."""
        parts = self._read()
        due = [slice_ for slice_ in parts if is_due(slice_)]
        taken = [(slice_, part) for slice_ in sorted(due) for part in range(parts.pop(slice_))]
        if due:
            self._write(parts)
        for place in taken:
            found = bytes(self._timers.getValue(place)[0])  # type: ignore[index]
            self._timers.removeKey(place)
            for high, low in np.frombuffer(found, "<i8").reshape(-1, 2).tolist():
                yield place[0], (high, low)

    def first(self) -> int | None:
        """The earliest slice that has keys."""
        return min(self._read(), default=None)

    def _read(self) -> dict[int, int]:
        found = self._parts.get()
        return {} if found is None else {int(slice_): parts for slice_, parts in json.loads(found[0]).items()}

    def _write(self, parts: dict[int, int]) -> None:
        self._parts.update((json.dumps(parts),))


def numbers(values: Sequence[int]) -> bytes:
    return np.array(values, "<i8").tobytes()
