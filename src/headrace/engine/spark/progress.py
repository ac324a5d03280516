"""What Spark says about the batches of a query, and what a flow's numbers are made of."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from headrace.engine.state.utc import utc_text
from headrace.plan.model import FlowPlan, LakeInput, StreamInput

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

OUTPUT = "output"
"""The name under which a flow's rows are counted on their way to the sinks."""
_INPUT = "input:"
_RATE_SECONDS = 60.0
_EPOCH = datetime(1970, 1, 2, tzinfo=UTC)


def new_batches(query: StreamingQuery, after: int) -> list[dict[str, Any]]:
    """Reports of batches with a higher id, oldest first.

    Asked of the JVM one by one and as JSON: PySpark's own list costs dozens of calls for each of fifty reports, at
    every look.
    """
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    java = query._jsq
    newest = java.lastProgress()
    if newest is None or newest.batchId() <= after:
        return []
    found = []
    for report in reversed(list(java.recentProgress())):
        if report.batchId() <= after:
            break
        found.append(StreamingQueryProgress.fromJson(json.loads(report.json())))
    return list(_each_once(report for report in reversed(found) if _ran(report)))


def _ran(report: Mapping[str, Any]) -> bool:
    """Whether there was a batch: when there is nothing to do, Spark reports on the next one as if it had been empty."""
    return "addBatch" in report["durationMs"] or bool(report["numInputRows"])


def _each_once(reports: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Spark may report twice about one batch; the last word counts."""
    yield from {report["batchId"]: report for report in reports}.values()


@dataclass
class StreamNumbers:
    """What is known about one timed input."""

    delay: timedelta
    newest: datetime | None = None
    last_row_at: datetime | None = None
    """When its last record came in, by our clock."""

    @property
    def watermark(self) -> datetime | None:
        """How far this stream alone would let the watermark go."""
        return None if self.newest is None else self.newest - self.delay


@dataclass
class FlowCounters:
    """The numbers of one flow since the engine started. What is not known is None."""

    trigger: timedelta
    streams: dict[str, StreamNumbers]
    rows_in: int = 0
    rows_out: int | None = None
    batches: int = 0
    late_rows: int = 0
    last_batch: dict[str, Any] | None = None
    watermark: datetime | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    latency_s: float | None = None
    """From the newest event of the last batch that had any to the end of that batch."""
    _rates: deque[tuple[float, int]] = field(default_factory=deque)

    @staticmethod
    def of(flow: FlowPlan) -> FlowCounters:
        """The numbers of a flow that has not run yet."""
        timed = {
            one.name: StreamNumbers(one.event_time.watermark)
            for one in flow.all_inputs()
            if isinstance(one, StreamInput | LakeInput) and one.event_time is not None
        }
        return FlowCounters(flow.trigger, timed if flow.state else {})

    def take(self, report: Mapping[str, Any]) -> None:
        """Take in the report of a batch."""
        rows = report["numInputRows"] or 0
        ended = ended_at(report)
        self.batches += 1
        self.rows_in += rows
        self._rates.append((time.monotonic(), rows))
        while self._rates[0][0] < time.monotonic() - _RATE_SECONDS:
            self._rates.popleft()
        self.last_batch = self._described(report, rows, ended)
        self._take_output(report)
        self._take_time(report, ended)
        self._take_state(report, rows)

    def rows_per_s(self) -> float | None:
        """The mean of the last minute; None before the first batch."""
        now, rates = time.monotonic(), list(self._rates)
        if not rates:
            return None
        began = max(rates[0][0] - self.trigger.total_seconds(), now - _RATE_SECONDS)
        return sum(rows for at, rows in rates if at >= now - _RATE_SECONDS) / max(now - began, 0.001)

    @property
    def load(self) -> float | None:
        """How much of the time between triggers a batch takes: above 1 the flow falls behind."""
        duration = self.last_batch["duration_s"] if self.last_batch else None
        return None if duration is None else duration / max(self.trigger.total_seconds(), 0.001)

    @property
    def held_back_by(self) -> str | None:
        """The stream that keeps the watermark from going on, when there are several."""
        if len(self.streams) < 2:
            return None
        silent = [name for name, one in self.streams.items() if one.watermark is None]
        if silent:
            return silent[0]
        return min(self.streams, key=lambda name: self.streams[name].watermark or _EPOCH)

    def _described(self, report: Mapping[str, Any], rows: int, ended: datetime) -> dict[str, Any]:
        phases = {name: took / 1000 for name, took in report["durationMs"].items() if name != "triggerExecution"}
        total = report["durationMs"].get("triggerExecution")
        return {
            "id": report["batchId"],
            "rows": rows,
            "ended_at": iso(ended),
            "duration_s": None if total is None else total / 1000,
            "phases_s": phases,
        }

    def _take_output(self, report: Mapping[str, Any]) -> None:
        counted = rows_given(report)
        if counted is not None:
            self.rows_out = (self.rows_out or 0) + counted

    def _take_time(self, report: Mapping[str, Any], ended: datetime) -> None:
        said = report["eventTime"] or {}
        self.watermark = known_time(said.get("watermark")) or self.watermark
        newest = known_time(said.get("max")) if report["numInputRows"] else None
        for name, found in _observed(report).items():
            stream = self.streams.get(name.removeprefix(_INPUT))
            if stream is None or not name.startswith(_INPUT) or not found.get("rows"):
                continue
            seen = known_time(found.get("newest"))
            if seen is not None:
                newest = max(seen, newest or seen)
                stream.newest = max(seen, stream.newest or seen)
            stream.last_row_at = ended
        if newest is not None:
            self.latency_s = max(0.0, (ended - newest).total_seconds())

    def _take_state(self, report: Mapping[str, Any], rows: int) -> None:
        operators = report["stateOperators"]
        if not operators:
            return
        self.state_rows = sum(one["numRowsTotal"] for one in operators)
        self.state_bytes = sum(one["memoryUsedBytes"] for one in operators)
        if rows:  # without input Spark repeats the numbers of an earlier batch
            self.late_rows += sum(one["numRowsDroppedByWatermark"] for one in operators)


def rows_out(number: int) -> Mapping[str, Any]:
    """What a report says of the rows that a batch gave to a sink which counts them itself."""
    return {"sink": {"numOutputRows": number}}


def rows_given(report: Mapping[str, Any]) -> int | None:
    """The rows that a batch gave to its sinks, None when nobody counted."""
    counted = (report.get("observedMetrics") or {}).get(OUTPUT)
    if counted is not None:
        return int(counted["rows"])
    said = report["sink"]["numOutputRows"]
    return said if said >= 0 else None  # Spark says -1 when a sink does not count


def ended_at(report: Mapping[str, Any]) -> datetime:
    """When a batch was done."""
    return datetime.fromisoformat(report["timestamp"]) + timedelta(
        milliseconds=report["durationMs"].get("triggerExecution", 0)
    )


def known_time(given: str | datetime | None) -> datetime | None:
    """A time as Spark reports it; it says 1970 for a watermark that is not known yet."""
    if given is None:
        return None
    found = given if isinstance(given, datetime) else datetime.fromisoformat(given)
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    return found if found > _EPOCH else None


def iso(moment: datetime | None) -> str | None:
    return None if moment is None else utc_text(moment)


def _observed(report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: row.asDict() for name, row in (report.get("observedMetrics") or {}).items()}
