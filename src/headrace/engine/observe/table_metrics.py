"""What Prometheus is told of tables: what their capture has written down."""

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
    (specs.TABLE_LAG, lambda one: one["lag"]),
    (specs.TABLE_SEQUENCE, lambda one: one["sequence"]),
    (specs.TABLE_NEWEST, lambda one: one["newest"] and datetime.fromisoformat(one["newest"]).timestamp()),
)


def table_families(groups: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    """The families of metrics; of groups that nobody follows only their state."""
    states, rows = specs.TABLE_STATE.family(), specs.TABLE_ROWS.family()
    changes, restarts = specs.TABLE_CHANGES.family(), specs.TABLE_RESTARTS.family()
    for one in groups:
        now = one["state"] if one["live"] else "stopped"
        for state in _STATES:
            states.add_metric([one["group"], state], float(now == state))
        if one["live"]:
            changes.add_metric([one["group"]], one["changes"])
            restarts.add_metric([one["group"]], one["restarts"])
        for name, table in one["tables"].items():
            if table["rows"] is not None:
                rows.add_metric([name], table["rows"])
    yield from (states, rows, changes, restarts)
    for spec, value in _GAUGES:
        yield _gauge(spec, value, [one for one in groups if one["live"]])


def _gauge(spec: MetricSpec[GaugeMetricFamily], value: _Value, groups: Sequence[Mapping[str, Any]]) -> Metric:
    family = spec.family()
    for one in groups:
        found = value(one)
        if found is not None:
            family.add_metric([one["group"]], found)
    return family
