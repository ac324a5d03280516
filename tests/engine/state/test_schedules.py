"""When flows with a schedule are due: at their times, in their zone, and once for all that was missed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.engine.state.schedules import Timetable
from headrace.engine.state.state import StateDir
from headrace.plan.model import FlowPlan
from headrace.project.model import FlowSpec
from headrace.project.schedules import ScheduleSpec


def flow(**options: Any) -> FlowPlan:
    spec = FlowSpec.model_validate({"sql": "SELECT 1 AS a", "mode": "batch", **options})
    return FlowPlan("nightly", spec, "SELECT 1 AS a", (), (), ("a",), (), (), timedelta(seconds=1), 1, 1)


def at(hour: int, minute: int = 0, day: int = 1) -> datetime:
    return datetime(2026, 3, day, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"schedule": "61 0 * * *"}, "not a cron expression: bad minute"),
        ({"schedule": "0 0 * *"}, "five fields"),
        ({"schedule": "0 0 31 2 *"}, "bad day-of-month"),
        ({"schedule": {"cron": "0 0 * * *", "zone": "Asia/Kolkatta"}}, "Asia/Kolkata"),
        ({"schedule": "0 0 * * *", "mode": "micro_batch"}, "needs 'mode: batch'"),
        ({"over": "all", "mode": "micro_batch"}, "needs 'mode: batch'"),
    ],
)
def test_schedules_that_mean_nothing_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        flow(**options)


def test_times_are_those_of_the_zone_also_when_clocks_change() -> None:
    assert ScheduleSpec(cron="30 0 * * *", zone="Asia/Kolkata").after(at(0)) == at(19)
    berlin = ScheduleSpec(cron="30 2 * * *", zone="Europe/Berlin")
    assert berlin.after(at(12, day=27)) == at(1, 30, day=28)
    # there is no half past two on the 29th: cron runs it when the clock has been put forward
    assert berlin.after(at(12, day=28)) == at(1, day=29)
    assert berlin.after(at(12, day=29)) == at(0, 30, day=30)


def test_a_flow_waits_for_its_time_and_makes_up_for_missed_runs_once(tmp_path: Path) -> None:
    now, nightly = at(12), flow(schedule="0 3 * * *")
    table = Timetable(StateDir(tmp_path), clock=lambda: now)
    assert not table.is_due(nightly)
    assert table.describe(nightly) == {
        "cron": "0 3 * * *",
        "zone": "UTC",
        "last": None,
        "next": at(3, day=2).isoformat(),
    }
    now = at(3, 1, day=5)
    later = Timetable(StateDir(tmp_path), clock=lambda: now)
    assert later.is_due(nightly)
    later.begins(nightly)
    now = at(3, 20, day=5)
    later.ends(nightly)
    assert not later.is_due(nightly)
    told = Timetable(StateDir(tmp_path), clock=lambda: now).describe(nightly)
    assert told is not None
    assert (told["last"], told["next"]) == (at(3, 1, day=5).isoformat(), at(3, day=6).isoformat())


def test_by_hand_it_runs_at_once(tmp_path: Path) -> None:
    table = Timetable(StateDir(tmp_path), followed=False)
    assert table.is_due(flow(schedule="0 3 1 1 *"))
    assert not table.holds(flow(schedule="0 3 1 1 *"))
    assert table.is_due(flow())
    assert table.describe(flow()) is None
