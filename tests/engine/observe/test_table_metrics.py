"""Metrics of tables: what the capture says, and only the state of those that nobody follows."""

from __future__ import annotations

from typing import Any

from headrace.engine.observe.table_metrics import table_families

GROUP: dict[str, Any] = {
    "group": "pg",
    "state": "running",
    "live": True,
    "changes": 7,
    "restarts": 1,
    "lag": 12,
    "sequence": 3,
    "newest": "2026-05-01T00:00:00+00:00",
    "tables": {"orders": {"rows": 5}, "people": {"rows": None}},
}


def samples(*groups: dict[str, Any]) -> dict[tuple[str, ...], float]:
    found = [sample for family in table_families(groups) for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in found}


def test_a_group_that_is_followed() -> None:
    found = samples(GROUP)
    assert found["headrace_table_state", "pg", "running"] == 1
    assert found["headrace_table_state", "pg", "degraded"] == 0
    assert found["headrace_table_rows", "orders"] == 5
    assert ("headrace_table_rows", "people") not in found
    assert found["headrace_table_changes_total", "pg"] == 7
    assert found["headrace_table_restarts_total", "pg"] == 1
    assert found["headrace_table_lag", "pg"] == 12
    assert found["headrace_table_newest_timestamp_seconds", "pg"] == 1777593600


def test_a_group_that_nobody_follows() -> None:
    found = samples({**GROUP, "live": False})
    assert found["headrace_table_state", "pg", "stopped"] == 1
    assert found["headrace_table_rows", "orders"] == 5
    assert not [name for name, *_labels in found if name in ("headrace_table_lag", "headrace_table_changes_total")]
