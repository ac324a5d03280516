"""Counters that sinks keep while they write, for the metrics of the engine."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any


class Tally:
    """How many rows came to which end, by flow and sink. Used by the threads of several flows at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._bytes: Counter[tuple[str, str]] = Counter()
        self._batches: dict[tuple[str, int], Mapping[str, Any]] = {}

    def add(self, flow: str, sink: str, outcome: str, rows: int) -> None:
        """Count rows of one batch that were, say, `written` or `refused`."""
        with self._lock:
            self._counts[(flow, sink, outcome)] += rows

    def add_bytes(self, flow: str, sink: str, size: int) -> None:
        """Count what was written of one batch, for sinks that know it without a look at every row."""
        with self._lock:
            self._bytes[(flow, sink)] += size

    def add_batch(self, flow: str, batch: int, said: Mapping[str, Any]) -> None:
        """Say what Spark's report of a batch of a view does not: fields of the report, by their names."""
        with self._lock:
            self._batches[(flow, batch)] = said

    def take_batch(self, flow: str, batch: int) -> Mapping[str, Any]:
        """What was said about a batch; it is forgotten then."""
        with self._lock:
            return self._batches.pop((flow, batch), {})

    def counts(self) -> dict[tuple[str, str, str], int]:
        """All counts so far, by flow, sink and outcome."""
        with self._lock:
            return dict(self._counts)

    def bytes(self) -> dict[tuple[str, str], int]:
        """All bytes so far, by flow and sink; a sink that does not count them is not there."""
        with self._lock:
            return dict(self._bytes)


ENGINE = Tally()
"""What the flows of this process count into."""
