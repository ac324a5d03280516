"""What Prometheus is told of tables: what their capture has written down."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

_STATES = ("starting", "snapshot", "running", "degraded", "stopped")
_Value = Callable[[Mapping[str, Any]], float | None]
_GAUGES: tuple[tuple[str, str, _Value], ...] = (
    ("headrace_table_lag", "How far a group of tables is behind, in its source's own unit.", lambda one: one["lag"]),
    ("headrace_table_sequence", "The newest commit of a group's log.", lambda one: one["sequence"]),
    (
        "headrace_table_newest_timestamp_seconds",
        "When the newest change of a group happened at its source.",
        lambda one: one["newest"] and datetime.fromisoformat(one["newest"]).timestamp(),
    ),
)


def table_families(groups: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    """The families of metrics; of groups that nobody follows only their state."""
    states = GaugeMetricFamily("headrace_table_state", "1 for the state of a group.", labels=["group", "state"])
    rows = GaugeMetricFamily("headrace_table_rows", "Rows of a table.", labels=["table"])
    changes = CounterMetricFamily("headrace_table_changes", "Weighted rows logged.", labels=["group"])
    restarts = CounterMetricFamily("headrace_table_restarts", "Failures of a group's reader.", labels=["group"])
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
    for name, words, value in _GAUGES:
        yield _gauge(name, words, value, [one for one in groups if one["live"]])


def _gauge(name: str, words: str, value: _Value, groups: Sequence[Mapping[str, Any]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, words, labels=["group"])
    for one in groups:
        found = value(one)
        if found is not None:
            family.add_metric([one["group"]], found)
    return family
