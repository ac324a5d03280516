"""The metrics for Prometheus. Batches are counted when they are done, everything else is read on request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

import psutil
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace import __version__
from headrace.core.tallies.metrics import MetricSpec
from headrace.core.tallies.tally import ENGINE
from headrace.engine.observe import metric_specs as specs
from headrace.engine.observe.status import EngineStatus
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

    def __init__(self, status: EngineStatus) -> None:
        self._registry = CollectorRegistry()
        self._rows_in = self._counter(specs.ROWS_IN)
        self._rows_out = self._counter(specs.ROWS_OUT)
        self._batches = self._counter(specs.BATCHES)
        duration = specs.BATCH_DURATION
        self._duration = Histogram(
            duration.name, duration.help, duration.labels, buckets=_BUCKETS, registry=self._registry
        )
        for run in status.runs:  # a counter that starts at its first value hides that value from rate()
            self._rows_in.labels(run.plan.name)
            self._batches.labels(run.plan.name)
        self._registry.register(_Snapshot(status))

    def _counter(self, spec: MetricSpec[CounterMetricFamily]) -> Counter:
        return Counter(spec.name, spec.help, spec.labels, registry=self._registry)

    def batch_done(self, flow: FlowPlan, progress: Mapping[str, Any]) -> None:
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

    def __init__(self, status: EngineStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[Any]:
        """One family after the other."""
        status = self._status
        document = status.document()
        engine = specs.ENGINE_INFO.family()
        engine.add_metric([__version__, status.project], {})
        yield engine
        ready = specs.READY.family()
        ready.add_metric([], float(document["ready"]))
        yield ready
        yield _memory()
        yield self._states()
        yield self._restarts()
        yield self._letters()
        yield self._schemas()
        for spec, value in _GAUGES:
            family = spec.family()
            for flow in document["flow_list"]:
                number = value(flow)
                if number is not None:
                    family.add_metric([flow["name"]], number)
            yield family
        yield from self._counters(document)
        yield self._sink_rows()
        yield from self._bytes()
        yield from table_families(status.tables())
        yield from step_families({run.plan.name for run in self._status.runs})

    def _states(self) -> Metric:
        family = specs.FLOW_STATE.family()
        for run in self._status.runs:
            for state in STATES:
                family.add_metric([run.plan.name, state], float(run.state == state))
        return family

    def _restarts(self) -> Metric:
        family = specs.RESTARTS.family()
        for run in self._status.runs:
            family.add_metric([run.plan.name], run.restarts)
        return family

    def _letters(self) -> Metric:
        family = specs.DEAD_LETTERS.family()
        for run in self._status.runs:
            for reason, count in sorted(self._status.letters.counts.get(run.plan.name, {}).items()):
                family.add_metric([run.plan.name, reason], count)
        return family

    def _schemas(self) -> Metric:
        family = specs.SCHEMAS.family()
        for (stream, outcome), count in sorted(dict(self._status.schemas).items()):
            family.add_metric([stream, outcome], count)
        return family

    def _sink_rows(self) -> Metric:
        family = specs.SINK_ROWS.family()
        flows = {run.plan.name for run in self._status.runs}
        for (flow, sink, outcome), rows in sorted(ENGINE.counts().items()):
            if flow in flows:
                family.add_metric([flow, sink, outcome], rows)
        return family

    def _bytes(self) -> Iterator[Metric]:
        read = specs.BYTES_IN.family()
        written = specs.BYTES_OUT.family()
        for run in self._status.runs:
            for stream, size in bytes_in(run.plan).items():
                read.add_metric([run.plan.name, stream], size)
            for sink, size in bytes_out(run.plan).items():
                written.add_metric([run.plan.name, sink], size)
        yield read
        yield written

    def _counters(self, document: Mapping[str, Any]) -> Iterator[Metric]:
        late = specs.LATE_ROWS.family()
        for flow in document["flow_list"]:
            if flow["late_rows"] is not None:
                late.add_metric([flow["name"]], flow["late_rows"])
        yield late


_GAUGES: tuple[tuple[MetricSpec[GaugeMetricFamily], Callable[[Mapping[str, Any]], float | None]], ...] = (
    (specs.LAG_RECORDS, lambda flow: flow["lag"] and flow["lag"]["records"]),
    (specs.LAG_SECONDS, lambda flow: flow["lag"] and flow["lag"]["s"]),
    (specs.WATERMARK_GAP, lambda flow: flow["watermark_gap_s"]),
    (specs.WATERMARK, lambda flow: flow["watermark"] and _seconds(flow["watermark"])),
    (specs.STATE_ROWS, lambda flow: flow["state_rows"]),
    (specs.STATE_BYTES, lambda flow: flow["state_bytes"]),
    (specs.LOAD_RATIO, lambda flow: flow["load"]),
    (specs.LATENCY, lambda flow: flow["latency_s"]),
    (specs.LAST_BATCH, lambda flow: flow["last_batch"] and _seconds(flow["last_batch"]["ended_at"])),
)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _memory() -> Metric:
    """Resident memory of this process and of all that it started: the JVM and the Python workers."""
    family = specs.MEMORY_BYTES.family()
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
