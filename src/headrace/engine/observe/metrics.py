"""What Prometheus is told. Numbers of batches are counted as they are done, everything else when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import psutil
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from headrace import __version__
from headrace.core.tallies.tally import ENGINE
from headrace.engine.observe.status import Board
from headrace.engine.observe.step_metrics import step_families
from headrace.engine.observe.table_metrics import table_families
from headrace.engine.observe.volumes import bytes_in, bytes_out
from headrace.engine.spark.progress import output_rows
from headrace.engine.state.status_file import STATES
from headrace.plan.model import FlowPlan

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# the names Spark has for the steps of a batch; another name would be another series, without bound
_PHASES = {
    "latestOffset": "latest_offset",
    "queryPlanning": "planning",
    "walCommit": "write_ahead",
    "getBatch": "get_batch",
    "addBatch": "process",
    "commitBatch": "commit_batch",
    "commitOffsets": "commit",
    "triggerExecution": "total",
}
_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Observer of batches, and the answer to `GET /metrics`."""

    def __init__(self, board: Board) -> None:
        self._registry = CollectorRegistry()
        self._rows_in = Counter("headrace_rows_in", "Rows read from the inputs.", ["flow"], registry=self._registry)
        self._rows_out = Counter(
            "headrace_rows_out", "Rows given to the sinks, where that is counted.", ["flow"], registry=self._registry
        )
        self._batches = Counter("headrace_batches", "Batches done.", ["flow"], registry=self._registry)
        self._duration = Histogram(
            "headrace_batch_duration_seconds", "Time a batch took, by phase; 'total' is all of it.",
            ["flow", "phase"], buckets=_BUCKETS, registry=self._registry,
        )  # fmt: skip
        for run in board.runs:  # a counter that begins at its first value hides that value from rate()
            self._rows_in.labels(run.plan.name)
            self._batches.labels(run.plan.name)
        self._registry.register(_Snapshot(board))

    def batch_done(self, flow: FlowPlan, progress: Mapping[str, Any]) -> None:
        """Count one batch."""
        self._batches.labels(flow.name).inc()
        self._rows_in.labels(flow.name).inc(progress["numInputRows"] or 0)
        rows_out = output_rows(progress)
        if rows_out is not None:
            self._rows_out.labels(flow.name).inc(rows_out)
        for name, milliseconds in progress["durationMs"].items():
            if name in _PHASES:
                self._duration.labels(flow.name, _PHASES[name]).observe(milliseconds / 1000)

    def close(self) -> None:
        """Nothing is held back."""

    def text(self) -> bytes:
        """All metrics as Prometheus reads them."""
        return generate_latest(self._registry)


class _Snapshot(Collector):
    """Metrics that are known at the moment of the question. What is not known is left out."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def collect(self) -> Iterator[Any]:
        """One family after the other."""
        board = self._board
        document = board.document()
        yield InfoMetricFamily("headrace_engine", "The engine.", {"version": __version__, "project": board.project})
        ready = GaugeMetricFamily("headrace_ready", "1 when every required flow runs.")
        ready.add_metric([], float(document["ready"]))
        yield ready
        yield _memory()
        yield self._states()
        yield self._restarts()
        yield self._letters()
        yield self._schemas()
        for name, help_text, value in _GAUGES:
            family = GaugeMetricFamily(name, help_text, labels=["flow"])
            for flow in document["flow_list"]:
                found = value(flow)
                if found is not None:
                    family.add_metric([flow["name"]], found)
            yield family
        yield from self._counters(document)
        yield self._sink_rows()
        yield from self._bytes()
        yield from table_families(board.tables())
        yield from step_families({run.plan.name for run in self._board.runs})

    def _states(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily("headrace_flow_state", "1 for the state a flow is in.", labels=["flow", "state"])
        for run in self._board.runs:
            for state in STATES:
                family.add_metric([run.plan.name, state], float(run.state == state))
        return family

    def _restarts(self) -> CounterMetricFamily:
        family = CounterMetricFamily("headrace_restarts", "Restarts of a flow after a failure.", labels=["flow"])
        for run in self._board.runs:
            family.add_metric([run.plan.name], run.restarts)
        return family

    def _letters(self) -> CounterMetricFamily:
        family = CounterMetricFamily(
            "headrace_dead_letters", "Records kept as dead letters.", labels=["flow", "reason"]
        )
        for run in self._board.runs:
            for reason, count in sorted(self._board.letters.counts.get(run.plan.name, {}).items()):
                family.add_metric([run.plan.name, reason], count)
        return family

    def _schemas(self) -> CounterMetricFamily:
        family = CounterMetricFamily(
            "headrace_schemas",
            "Newer schemas of streams: accepted, refused, or the registry was unreachable.",
            labels=["stream", "outcome"],
        )
        for (stream, outcome), count in sorted(dict(self._board.schemas).items()):
            family.add_metric([stream, outcome], count)
        return family

    def _sink_rows(self) -> CounterMetricFamily:
        family = CounterMetricFamily(
            "headrace_sink_rows", "What became of rows, for sinks that count them.", labels=["flow", "sink", "outcome"]
        )
        flows = {run.plan.name for run in self._board.runs}
        for (flow, sink, outcome), rows in sorted(ENGINE.counts().items()):
            if flow in flows:
                family.add_metric([flow, sink, outcome], rows)
        return family

    def _bytes(self) -> Iterator[CounterMetricFamily]:
        read = CounterMetricFamily(
            "headrace_bytes_in", "Bytes of the records given to a stream's decoder.", labels=["flow", "stream"]
        )
        written = CounterMetricFamily(
            "headrace_bytes_out", "Bytes written, for sinks that count them.", labels=["flow", "sink"]
        )
        for run in self._board.runs:
            for stream, size in bytes_in(run.plan).items():
                read.add_metric([run.plan.name, stream], size)
            for sink, size in bytes_out(run.plan).items():
                written.add_metric([run.plan.name, sink], size)
        yield read
        yield written

    def _counters(self, document: Mapping[str, Any]) -> Iterator[CounterMetricFamily]:
        late = CounterMetricFamily("headrace_late_rows", "Rows too late for their window.", labels=["flow"])
        for flow in document["flow_list"]:
            if flow["late_rows"] is not None:
                late.add_metric([flow["name"]], flow["late_rows"])
        yield late


_GAUGES: tuple[tuple[str, str, Any], ...] = (
    ("headrace_lag_records", "Records not read yet.", lambda flow: flow["lag"] and flow["lag"]["records"]),
    (
        "headrace_lag_seconds",
        "How long the oldest record that is not read yet has been waiting.",
        lambda flow: flow["lag"] and flow["lag"]["s"],
    ),
    ("headrace_watermark_gap_seconds", "How far the watermark is behind now.", lambda flow: flow["watermark_gap_s"]),
    (
        "headrace_watermark_timestamp_seconds",
        "The watermark, in seconds since 1970.",
        lambda flow: flow["watermark"] and _seconds(flow["watermark"]),
    ),
    ("headrace_state_rows", "Rows of state.", lambda flow: flow["state_rows"]),
    ("headrace_state_bytes", "Memory used by state.", lambda flow: flow["state_bytes"]),
    ("headrace_load_ratio", "Duration of the last batch / time between triggers.", lambda flow: flow["load"]),
    (
        "headrace_end_to_end_latency_seconds",
        "From the newest event of the last batch to the end of that batch.",
        lambda flow: flow["latency_s"],
    ),
    (
        "headrace_last_batch_timestamp_seconds",
        "When the last batch ended, in seconds since 1970.",
        lambda flow: flow["last_batch"] and _seconds(flow["last_batch"]["ended_at"]),
    ),
)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _memory() -> GaugeMetricFamily:
    """Resident memory of this process and of all that it started: the JVM and the Python workers."""
    family = GaugeMetricFamily("headrace_memory_bytes", "Resident memory of the engine.", labels=["process"])
    mine = psutil.Process()
    sizes = {"engine": mine.memory_info().rss, "jvm": 0, "workers": 0}
    for child in mine.children(recursive=True):
        try:
            sizes["jvm" if child.name() == "java" else "workers"] += child.memory_info().rss
        except psutil.Error:
            continue  # a worker that has just ended
    for name, size in sizes.items():
        family.add_metric([name], size)
    return family
