"""The reports of the application over tables of a few rows: every number is counted by hand."""

from __future__ import annotations

import csv
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headrace.engine.flows.flow import FlowStarter
from headrace.engine.state.state import StateDir
from headrace.plan.planner import make_plan
from headrace.project.loader import load
from headrace.serve.base.settings import Settings
from headrace.testing.tables import ListTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

APP = Path(__file__).parents[3] / "apps" / "telemetry"
NOW = datetime.now(UTC)
DAY = timedelta(days=1)
FIRST = ("active_users", "time_spent", "average_dau", "error_percentage", "content_consumption", "enrolment_progress")
Rows = dict[str, list[dict[str, str]]]


def summary(
    uid: str, channel: str | None, ago: timedelta, seconds: float, content: str | None = None
) -> dict[str, Any]:
    return {
        "__time": NOW - ago,
        "uid": uid,
        "dimension_channel": channel,
        "dimensions_type": "app" if content is None else "content",
        "total_time_spent": seconds,
        "object_id": content,
        "content_name": content and content.upper(),
    }


SUMMARIES = [
    summary("u1", "c1", timedelta(hours=1), 1800),
    summary("u1", "c1", timedelta(hours=2), 1800),
    summary("u2", "c1", 3 * DAY, 3600),
    summary("u3", "c2", 29 * DAY, 60),
    summary("u4", None, 31 * DAY, 60),
    summary("u1", "c1", timedelta(hours=1), 90, "do_1"),
    summary("u2", "c1", 40 * DAY, 30, "do_1"),
    summary("u2", "c1", timedelta(hours=1), 600, "do_2"),
]
# half past six in the evening UTC is midnight in India: the first two are of one day there
MIDNIGHT = datetime.combine((NOW - 5 * DAY).date(), datetime.min.time(), UTC) + timedelta(hours=18, minutes=30)
EVENTS = [
    {
        "__time": MIDNIGHT + timedelta(hours=hours),
        "eid": eid,
        "actor_id": who,
        "context_channel": "c1",
        "content_mimetype": kind,
    }
    for hours, eid, who, kind in [
        (1, "IMPRESSION", "u1", "video/mp4"),
        (8, "IMPRESSION", "u2", "video/mp4"),
        (8, "IMPRESSION", "u2", "video/mp4"),
        (-1, "IMPRESSION", "u1", None),
        (-1, "START", "u9", None),
    ]
]
ERRORS = [{"__time": MIDNIGHT + timedelta(hours=8, minutes=5), "content_mimetype": "video/mp4"}]
COURSES = [
    {"course_id": "a", "name": "A", "org": "o1", "resources": 20},
    {"course_id": "b", "name": "B", "org": "o2", "resources": 0},
]
ENROLMENTS = [
    {"user_id": user, "course_id": course, "batch_id": "1", "status": status, "progress": progress}
    for user, course, status, progress in [
        ("u1", "a", 2, 3),
        ("u2", "a", 1, 1),
        ("u3", "a", 1, 9),
        ("u4", "a", None, 5),
        ("u5", "a", 0, 0),
        ("u6", "a", 1, 30),
        ("u7", "b", 2, 3),
        ("u8", "gone", 1, 3),
    ]
]


def lake(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    write_deltalake(str(folder / "lake" / name), pa.Table.from_pylist(rows))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> tuple[Rows, dict[str, tuple[str, ...]]]:
    """The CSV files of all reports, run once, and the logs of their endpoints."""
    folder = tmp_path_factory.mktemp("app") / "telemetry"
    shutil.copytree(APP, folder, ignore=shutil.ignore_patterns(".headrace", "__pycache__", "out", "lake"))
    lake(folder, "summary_events", SUMMARIES)
    lake(folder, "telemetry_events_syncts", EVENTS)
    lake(folder, "error_events", ERRORS)
    project = load(folder)
    tables = ListTables(project, project)
    tables.feed("courses", COURSES)
    tables.feed("enrolments", ENROLMENTS)
    starter = FlowStarter(project, StateDir.of(project.context), spark)
    plan = make_plan(project, [*FIRST, "course_progress"])
    # one by one: each starts a process of Python, to which Spark gives ten seconds
    for name in (*FIRST, "course_progress"):
        starter.start(plan.flow(name)).awaitTermination()
    logs = Settings.of(project).logs
    return {name: read(folder / "reports" / name) for name in (*FIRST, "course_progress")}, {
        name: logs.open(name, 1).endpoint.key for name in ("active_users", "course_progress")
    }


def read(folder: Path) -> list[dict[str, str]]:
    (file,) = folder.glob("*.csv")
    with file.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def by(rows: list[dict[str, str]], *keys: str) -> dict[Any, tuple[str, ...]]:
    """The other values of each row, by those of its key."""
    found = {tuple(row[key] for key in keys): tuple(v for k, v in row.items() if k not in keys) for row in rows}
    return {key[0] if len(key) == 1 else key: values for key, values in found.items()}


def test_active_users(made: tuple[Rows, Any]) -> None:
    assert by(made[0]["active_users"], "channel") == {"c1": ("1", "2"), "c2": ("0", "1")}


def test_time_spent(made: tuple[Rows, Any]) -> None:
    rows = made[0]["time_spent"]
    hours = {
        channel: sum(float(row["hours"]) for row in rows if row["channel"] == channel) for channel in ("c1", "none")
    }
    assert hours == {"c1": pytest.approx(2.0), "none": pytest.approx(0.0167)}
    assert sum(int(row["sessions"]) for row in rows) == 5
    assert all(datetime.fromisoformat(row["week"]).weekday() == 0 for row in rows)


def test_average_dau(made: tuple[Rows, Any]) -> None:
    assert by(made[0]["average_dau"], "channel") == {"c1": ("1.5", "2", "2")}


def test_error_percentage(made: tuple[Rows, Any]) -> None:
    rows = sorted(
        (row["mimetype"], row["events"], row["errors"], row["percent"]) for row in made[0]["error_percentage"]
    )
    assert rows == [("none", "2", "0", "0.0"), ("video/mp4", "1", "0", "0.0"), ("video/mp4", "2", "1", "33.33")]


def test_content_consumption(made: tuple[Rows, Any]) -> None:
    assert by(made[0]["content_consumption"], "content_id") == {
        "do_1": ("DO_1", "2", "2", "2.0"),
        "do_2": ("DO_2", "1", "1", "10.0"),
    }


def test_progress_of_learners(made: tuple[Rows, Any]) -> None:
    rows = {row["user_id"]: (row["percent"], row["status"]) for row in made[0]["enrolment_progress"]}
    assert rows == {
        "u1": ("100.0", "completed"),
        "u2": ("5.0", "started"),
        "u3": ("45.0", "in-progress"),
        "u4": ("0.0", "enrolled"),
        "u5": ("0.0", "enrolled"),
        "u6": ("100.0", "completed"),
        "u7": ("0.0", "enrolled"),
        "u8": ("0.0", "enrolled"),
    }


def test_progress_of_courses(made: tuple[Rows, Any]) -> None:
    assert by(made[0]["course_progress"], "course_id") == {
        "a": ("A", "o1", "6", "2", "2", "2", "41.67"),
        "b": ("B", "o2", "1", "1", "0", "0", "0.0"),
        "gone": ("", "", "1", "1", "0", "0", "0.0"),
    }


def test_they_are_endpoints_too(made: tuple[Rows, Any]) -> None:
    assert made[1] == {"active_users": ("channel",), "course_progress": ("course_id",)}
