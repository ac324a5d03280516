"""Spark's progress reports on batches, and the counters of a flow that are derived from them."""

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
"""The name of the observed metric that counts the output rows of a flow."""
_INPUT = "input:"
_RATE_SECONDS = 60.0
_EPOCH = datetime(1970, 1, 2, tzinfo=UTC)


def new_batches(query: StreamingQuery, after: int) -> list[dict[str, Any]]:
    """Reports of batches with a higher id, oldest first.

    Fetched from the JVM one by one as JSON: PySpark's own list makes dozens of calls for each of fifty reports.
    """
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    java = query._jsq
    newest = java.lastProgress()
    if newest is None or newest.batchId() <= after:
        return []
    reports = []
    for report in reversed(list(java.recentProgress())):
        if report.batchId() <= after:
            break
        reports.append(StreamingQueryProgress.fromJson(json.loads(report.json())))
    return list(_each_once(report for report in reversed(reports) if _has_batch(report)))


def _has_batch(report: Mapping[str, Any]) -> bool:
    """Whether a batch ran: while a query is idle, Spark reports on the next batch as if it were empty."""
    return "addBatch" in report["durationMs"] or bool(report["numInputRows"])


def _each_once(reports: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Spark can report twice on one batch; the last report counts."""
    yield from {report["batchId"]: report for report in reports}.values()


@dataclass
class StreamNumbers:
    """The event times of one input."""

    delay: timedelta
    newest: datetime | None = None
    last_row_at: datetime | None = None
    """When its last record arrived, by the clock of the engine."""

    @property
    def watermark(self) -> datetime | None:
        """The watermark that this stream alone would give."""
        return None if self.newest is None else self.newest - self.delay


@dataclass
class FlowCounters:
    """The counters of one flow since the engine started. Unknown values are None."""

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
        timed = {
            source.name: StreamNumbers(source.event_time.watermark)
            for source in flow.all_inputs()
            if isinstance(source, StreamInput | LakeInput) and source.event_time is not None
        }
        return FlowCounters(flow.trigger, timed if flow.state else {})

    def take(self, report: Mapping[str, Any]) -> None:
        """Add the report of a batch."""
        rows = report["numInputRows"] or 0
        ended = ended_at(report)
        self.batches += 1
        self.rows_in += rows
        self._rates.append((time.monotonic(), rows))
        while self._rates[0][0] < time.monotonic() - _RATE_SECONDS:
            self._rates.popleft()
        self.last_batch = self._describe(report, rows, ended)
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
        """The duration of a batch relative to the trigger interval: above 1 the flow falls behind."""
        duration = self.last_batch["duration_s"] if self.last_batch else None
        return None if duration is None else duration / max(self.trigger.total_seconds(), 0.001)

    @property
    def held_back_by(self) -> str | None:
        """The stream that holds back the watermark, if there are several."""
        if len(self.streams) < 2:
            return None
        silent = [name for name, numbers in self.streams.items() if numbers.watermark is None]
        if silent:
            return silent[0]
        return min(self.streams, key=lambda name: self.streams[name].watermark or _EPOCH)

    def _describe(self, report: Mapping[str, Any], rows: int, ended: datetime) -> dict[str, Any]:
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
        rows = output_rows(report)
        if rows is not None:
            self.rows_out = (self.rows_out or 0) + rows

    def _take_time(self, report: Mapping[str, Any], ended: datetime) -> None:
        event_time = report["eventTime"] or {}
        self.watermark = known_time(event_time.get("watermark")) or self.watermark
        newest = known_time(event_time.get("max")) if report["numInputRows"] else None
        for name, observed in _observed(report).items():
            stream = self.streams.get(name.removeprefix(_INPUT))
            if stream is None or not name.startswith(_INPUT) or not observed.get("rows"):
                continue
            seen = known_time(observed.get("newest"))
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
        self.state_rows = sum(operator["numRowsTotal"] for operator in operators)
        self.state_bytes = sum(operator["memoryUsedBytes"] for operator in operators)
        if rows:  # without input Spark repeats the numbers of an earlier batch
            self.late_rows += sum(operator["numRowsDroppedByWatermark"] for operator in operators)


def rows_out(number: int) -> Mapping[str, Any]:
    """The part of a report with the output rows of a sink that counts them itself."""
    return {"sink": {"numOutputRows": number}}


def output_rows(report: Mapping[str, Any]) -> int | None:
    """The output rows of a batch; None if they were not counted."""
    observed = (report.get("observedMetrics") or {}).get(OUTPUT)
    if observed is not None:
        return int(observed["rows"])
    rows = report["sink"]["numOutputRows"]
    return rows if rows >= 0 else None  # Spark reports -1 if a sink does not count


def ended_at(report: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(report["timestamp"]) + timedelta(
        milliseconds=report["durationMs"].get("triggerExecution", 0)
    )


def known_time(reported: str | datetime | None) -> datetime | None:
    """A time of a report; Spark reports 1970 for a watermark that is not known yet."""
    if reported is None:
        return None
    time = reported if isinstance(reported, datetime) else datetime.fromisoformat(reported)
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    return time if time > _EPOCH else None


def iso(moment: datetime | None) -> str | None:
    return None if moment is None else utc_text(moment)


def _observed(report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: row.asDict() for name, row in (report.get("observedMetrics") or {}).items()}
