"""Declarations of Prometheus metrics. Collectors build metric families from them; the reference lists them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

MetricType = Literal["counter", "gauge", "histogram", "info"]
Family = TypeVar("Family", bound=Metric)
_SUFFIXES: dict[MetricType, str] = {"counter": "_total", "info": "_info"}


@dataclass(frozen=True)
class MetricSpec(Generic[Family]):
    """One metric. `name` has no type suffix such as `_total`."""

    type: MetricType
    new_family: Callable[..., Family]
    name: str
    help: str
    labels: tuple[str, ...] = ()

    @property
    def exposed_name(self) -> str:
        """The name in `/metrics`, with the suffix of its type."""
        return self.name + _SUFFIXES.get(self.type, "")

    def family(self) -> Family:
        """Create a family without samples, for a collector to fill."""
        return self.new_family(self.name, self.help, labels=self.labels)


@dataclass(frozen=True)
class MetricSet:
    """The metrics of one part of Headrace. A metric can only be declared through its set, so the set is complete."""

    title: str
    about: str
    metrics: list[MetricSpec[Any]] = field(default_factory=list)

    def counter(self, name: str, help_text: str, *labels: str) -> MetricSpec[CounterMetricFamily]:
        return self._add(MetricSpec("counter", CounterMetricFamily, name, help_text, labels))

    def gauge(self, name: str, help_text: str, *labels: str) -> MetricSpec[GaugeMetricFamily]:
        return self._add(MetricSpec("gauge", GaugeMetricFamily, name, help_text, labels))

    def histogram(self, name: str, help_text: str, *labels: str) -> MetricSpec[HistogramMetricFamily]:
        return self._add(MetricSpec("histogram", HistogramMetricFamily, name, help_text, labels))

    def info(self, name: str, help_text: str, *labels: str) -> MetricSpec[InfoMetricFamily]:
        return self._add(MetricSpec("info", InfoMetricFamily, name, help_text, labels))

    def _add(self, spec: MetricSpec[Family]) -> MetricSpec[Family]:
        self.metrics.append(spec)
        return spec
