"""Counters of sinks, for the metrics of the engine."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any


class Tally:
    """Row counts by flow, sink and outcome. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._bytes: Counter[tuple[str, str]] = Counter()
        self._batches: dict[tuple[str, int], Mapping[str, Any]] = {}

    def add(self, flow: str, sink: str, outcome: str, rows: int) -> None:
        """Count rows of a batch by outcome, such as `written` or `refused`."""
        with self._lock:
            self._counts[(flow, sink, outcome)] += rows

    def add_bytes(self, flow: str, sink: str, size: int) -> None:
        """Count the bytes written for a batch, for sinks that know the size without reading every row."""
        with self._lock:
            self._bytes[(flow, sink)] += size

    def add_batch(self, flow: str, batch: int, fields: Mapping[str, Any]) -> None:
        """Add fields that Spark's progress report of a view's batch lacks."""
        with self._lock:
            self._batches[(flow, batch)] = fields

    def take_batch(self, flow: str, batch: int) -> Mapping[str, Any]:
        """Return the fields of a batch and remove them."""
        with self._lock:
            return self._batches.pop((flow, batch), {})

    def counts(self) -> dict[tuple[str, str, str], int]:
        """Return all counts by flow, sink and outcome."""
        with self._lock:
            return dict(self._counts)

    def bytes(self) -> dict[tuple[str, str], int]:
        """Return all sizes by flow and sink, for the sinks that count them."""
        with self._lock:
            return dict(self._bytes)


ENGINE = Tally()
"""The tally of all flows of this process."""
