"""The reports on enrolments over tables of a real PostgreSQL: what they write is what PostgreSQL itself says."""

from __future__ import annotations

import csv
import random
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from psycopg.rows import dict_row
from tests.apps.telemetry.application import APP, Application
from tests.conftest import unavailable

from headrace.capture.__main__ import capture
from headrace.core.endpoints import OP, Op
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.state.state import StateDir
from headrace.engine.supervise.runner import Runner
from headrace.plan.planner import make_plan
from headrace.project.loader import Project
from headrace.serve.base.settings import Settings
from headrace.testing.services import Postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.service]

Row = Mapping[str, Any]
PROGRESS = """
SELECT user_id, course_id, name AS course, org, batch_id, percent::float8 AS percent, enrolled_on,
  CASE WHEN percent = 0 THEN 'enrolled' WHEN percent < 10 THEN 'started' WHEN percent < 100 THEN 'in-progress'
    ELSE 'completed' END AS status
FROM user_enrolments LEFT JOIN courses USING (course_id), LATERAL (SELECT CASE
  WHEN 0 IN (coalesce(resources, 0), coalesce(progress, 0), coalesce(status, 0)) THEN 0
  WHEN status = 2 THEN 100
  ELSE round(least(100, 100.0 * progress / resources), 2) END AS percent) AS reached
"""
BY_COURSE = f"""
SELECT course_id, max(course) AS course, max(org) AS org, count(*) AS enrolled,
  count(*) FILTER (WHERE status = 'enrolled') AS not_started,
  count(*) FILTER (WHERE status IN ('started', 'in-progress')) AS in_progress,
  count(*) FILTER (WHERE status = 'completed') AS completed, avg(percent) AS average_percent
FROM ({PROGRESS}) AS progress GROUP BY course_id
"""
# rows of a Parquet file beside those of the CSV file and the endpoint
SINKS = "[{type: files, path: reports/course_progress, contains: csv}, {type: files, path: parquet}, {type: endpoint}]"


@pytest.fixture
def database() -> Iterator[Any]:
    problem = Postgres.problem()
    if problem is not None:
        unavailable(problem)
    with (
        Postgres() as server,
        psycopg.connect(server.env["POSTGRES_URL"], autocommit=True, row_factory=dict_row) as connection,
    ):
        connection.execute((APP / "sql/postgres.sql").read_text())
        yield connection


def test_reports_say_what_postgresql_says(tmp_path: Path, spark: SparkSession, database: Any) -> None:
    url = f"postgresql://postgres@127.0.0.1:{database.info.port}/postgres"
    application = Application(tmp_path, "kafka", ENROLMENTS_DATABASE=url)
    application.overrides.append(f"flows.course_progress.sinks={SINKS}")
    project = application.project()
    fill(database)
    run(project, spark)
    compare(project, database)
    database.execute("UPDATE user_enrolments SET status = 2, progress = 1 WHERE course_id = 'c1'")
    database.execute("DELETE FROM user_enrolments WHERE course_id = 'c2'")
    database.execute("UPDATE courses SET resources = resources + 1, name = 'renamed' WHERE course_id = 'c3'")
    database.execute("INSERT INTO user_enrolments VALUES ('new', 'c9', 'b0', 1, 1, now())")
    run(project, spark)
    compare(project, database)


def fill(database: Any) -> None:
    """Learners in all states, courses of all sizes, one course that is not known."""
    chance = random.Random(4)
    sizes = (0, None, 3, 7, 20, 25, 40, 100)
    with database.cursor() as cursor:
        rows = [(f"c{n}", f"Course {n}", f"org{n % 3}", size) for n, size in enumerate(sizes)]
        cursor.executemany("INSERT INTO courses VALUES (%s, %s, %s, %s)", rows)
        for number in range(200):
            course, batch = f"c{chance.randrange(len(sizes) + 1)}", f"b{chance.randrange(2)}"
            state = chance.choice((None, 0, 1, 1, 1, 2)), chance.choice((None, *range(12), 99))
            cursor.execute(
                "INSERT INTO user_enrolments VALUES (%s, %s, %s, %s, %s, '2026-01-31 18:30:00.123456+05:30')",
                (f"u{number}", course, batch, *state),
            )


def run(project: Project, spark: SparkSession) -> None:
    """What `headrace run enrolment_progress course_progress` does, with the tables followed beside it."""
    state = StateDir.of(project.context)
    plan = make_plan(
        project,
        ["enrolment_progress", "course_progress"],
        shape_of=lambda name, spec: spec.shape(name, project.context),
    )
    with followed(project):
        starter = FlowStarter(project, state, spark, until_caught_up=True)
        runs = Runner(starter, plan, scheduled=False).run(seconds=300)
    assert [(one.state, one.error) for one in runs] == [("stopped", None)] * 2


@contextmanager
def followed(project: Project) -> Iterator[None]:
    told = threading.Event()
    following = threading.Thread(target=capture, args=(project, told))
    following.start()
    try:
        yield
    finally:
        told.set()
        following.join(60)


def compare(project: Project, database: Any) -> None:
    root = project.context.root
    learners = by_key(database.execute(PROGRESS), "user_id", "course_id", "batch_id")
    assert len(learners) > 150
    assert by_key(DeltaTable(str(root / "lake/enrolment_progress")).to_pyarrow_table().to_pylist(),
                  "user_id", "course_id", "batch_id") == learners  # fmt: skip
    texts = by_key(read_csv(root / "reports/enrolment_progress"), "user_id", "course_id", "batch_id")
    assert {key: (row["status"], float(row["percent"]), row["course"]) for key, row in texts.items()} == {
        key: (row["status"], row["percent"], row["course"] or "") for key, row in learners.items()
    }
    courses = by_key(database.execute(BY_COURSE), "course_id")
    assert {status for row in learners.values() for status in [row["status"]]} == {
        "enrolled", "started", "in-progress", "completed",
    }  # fmt: skip
    # an average of doubles is rounded
    wanted = {key: {**row, "average_percent": pytest.approx(row["average_percent"], abs=0.006)}
              for key, row in courses.items()}  # fmt: skip
    assert by_key(pq.read_table(root / "parquet").to_pylist(), "course_id") == wanted
    assert by_key(served(project), "course_id") == wanted
    texts = by_key(read_csv(root / "reports/course_progress"), "course_id")
    assert {key: (int(row["enrolled"]), float(row["average_percent"])) for key, row in texts.items()} == {
        key: (row["enrolled"], row["average_percent"]) for key, row in wanted.items()
    }


def read_csv(folder: Path) -> list[dict[str, str]]:
    (file,) = folder.glob("*.csv")
    with file.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def served(project: Project) -> Iterable[Row]:
    """What the changes of the endpoint add up to."""
    log = Settings.of(project).logs.open("course_progress", 1)
    rows: dict[str, Row] = {}
    for segment in log.after(0, 64):
        for batch in log.changes(segment):
            for row in batch.to_pylist():
                change = row.pop(OP)
                rows.pop(row["course_id"], None)
                if change != Op.DELETE:
                    rows[row["course_id"]] = {name: value for name, value in row.items() if name[:2] != "__"}
    return rows.values()


def by_key(rows: Iterable[Row], *key: str) -> dict[tuple[Any, ...], Row]:
    """Rows by their key, which no two of them have."""
    listed = list(rows)
    found = {tuple(row[name] for name in key): row for row in listed}
    assert len(found) == len(listed)
    return found
