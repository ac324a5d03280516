"""Declarations of Prometheus metrics: collectors build their families from them, and the reference lists them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily

MetricType = Literal["counter", "gauge", "histogram", "info"]
_FAMILIES: dict[MetricType, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
    "info": InfoMetricFamily,
}
_SUFFIXES: dict[MetricType, str] = {"counter": "_total", "info": "_info"}


@dataclass(frozen=True)
class MetricSpec:
    """One metric: its name without the suffix of its type, and what Prometheus shows of it."""

    type: MetricType
    name: str
    help: str
    labels: tuple[str, ...] = ()

    @property
    def exposed_name(self) -> str:
        """The name in `/metrics`."""
        return self.name + _SUFFIXES.get(self.type, "")

    def family(self) -> Any:
        """A new family without samples, for a collector to fill."""
        return _FAMILIES[self.type](self.name, self.help, labels=self.labels)


@dataclass(frozen=True)
class MetricSet:
    """The metrics of one part of Headrace. A metric can only be declared through its set, so the set is complete."""

    title: str
    about: str
    metrics: list[MetricSpec] = field(default_factory=list)

    def counter(self, name: str, help_text: str, *labels: str) -> MetricSpec:
        return self._declared(MetricSpec("counter", name, help_text, labels))

    def gauge(self, name: str, help_text: str, *labels: str) -> MetricSpec:
        return self._declared(MetricSpec("gauge", name, help_text, labels))

    def histogram(self, name: str, help_text: str, *labels: str) -> MetricSpec:
        return self._declared(MetricSpec("histogram", name, help_text, labels))

    def info(self, name: str, help_text: str, *labels: str) -> MetricSpec:
        return self._declared(MetricSpec("info", name, help_text, labels))

    def _declared(self, spec: MetricSpec) -> MetricSpec:
        self.metrics.append(spec)
        return spec
