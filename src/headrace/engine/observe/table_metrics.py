"""The metrics of tables for Prometheus, from the status of their capture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from headrace.core.tallies.metrics import MetricSpec
from headrace.engine.observe import metric_specs as specs

_STATES = ("starting", "snapshot", "running", "degraded", "stopped")
_Value = Callable[[Mapping[str, Any]], float | None]
_GAUGES: tuple[tuple[MetricSpec[GaugeMetricFamily], _Value], ...] = (
    (specs.TABLE_LAG, lambda group: group["lag"]),
    (specs.TABLE_SEQUENCE, lambda group: group["sequence"]),
    (specs.TABLE_NEWEST, lambda group: group["newest"] and datetime.fromisoformat(group["newest"]).timestamp()),
)


def table_families(groups: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    """The metric families. A table group that is not captured now has only its state."""
    states, rows = specs.TABLE_STATE.family(), specs.TABLE_ROWS.family()
    changes, restarts = specs.TABLE_CHANGES.family(), specs.TABLE_RESTARTS.family()
    for group in groups:
        now = group["state"] if group["live"] else "stopped"
        for state in _STATES:
            states.add_metric([group["group"], state], float(now == state))
        if group["live"]:
            changes.add_metric([group["group"]], group["changes"])
            restarts.add_metric([group["group"]], group["restarts"])
        for name, table in group["tables"].items():
            if table["rows"] is not None:
                rows.add_metric([name], table["rows"])
    yield from (states, rows, changes, restarts)
    for spec, value in _GAUGES:
        yield _gauge(spec, value, [group for group in groups if group["live"]])


def _gauge(spec: MetricSpec[GaugeMetricFamily], value: _Value, groups: Sequence[Mapping[str, Any]]) -> Metric:
    family = spec.family()
    for group in groups:
        number = value(group)
        if number is not None:
            family.add_metric([group["group"]], number)
    return family
