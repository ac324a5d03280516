"""The page of the Prometheus metrics."""

from __future__ import annotations

from typing import Any

from headrace.core.tallies.metrics import MetricSet, MetricSpec
from headrace.engine.observe.metric_specs import METRIC_SETS
from headrace.reference.markdown import page, table
from headrace.serve.base.meters import SERVE

_ABOUT = """The engine answers `GET /metrics` on the port of `http` in the project file; a serve node answers it on its
REST port. A histogram `NAME` has the series `NAME_bucket`, `NAME_sum` and `NAME_count`. A series `NAME_created` holds
the time at which the counter or histogram was created."""


def metrics_page() -> str:
    lines = ["# Metrics", "", *_ABOUT.splitlines()]
    for metric_set in (*METRIC_SETS, SERVE):
        lines += ["", *_section(metric_set)]
    return page("the metric declarations", *lines)


def _section(metric_set: MetricSet) -> list[str]:
    rows = [_row(metric) for metric in metric_set.metrics]
    heading = [f"## {metric_set.title}", "", metric_set.about, ""]
    return [*heading, *table(("metric", "type", "labels", "meaning"), rows)]


def _row(metric: MetricSpec[Any]) -> tuple[str, str, str, str]:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"`{metric.exposed_name}`", metric.type, labels, metric.help
