"""Reports: each run reads tables as they stand and replaces the result of the last; after a crash, the same again."""

from __future__ import annotations

import csv
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headrace.core.errors import ProjectErrors
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.state.state import StateDir
from headrace.engine.supervise.runner import Runner
from headrace.plan.explain import to_json, to_text
from headrace.plan.planner import make_plan
from headrace.project.loader import Project, load
from headrace.serve.base.settings import Settings
from headrace.testing.tables import ListTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROJECT = """
project: site
streams:
  visits: {source: {type: lake, path: lake/visits}}
tables:
  users: {source: {type: push, columns: "id bigint, city string", key: [id]}}
flows:
  cities:
    mode: batch
    over: all
    key: city
    sql: |
      SELECT u.city, count(DISTINCT v.user) AS users
      FROM visits v JOIN users u ON u.id = v.user
      WHERE v.at > current_timestamp() - INTERVAL 1 DAY
      GROUP BY u.city
    sinks: [{type: files, path: out/cities, contains: csv}, {type: endpoint}]
"""


def project(folder: Path, text: str = PROJECT) -> Project:
    (folder / "headrace.yaml").write_text(text)
    return load(folder)


def visit(folder: Path, *users: int, ago: timedelta = timedelta()) -> None:
    at = pa.array([datetime.now(UTC) - ago] * len(users), pa.timestamp("us", "UTC"))
    write_deltalake(
        str(folder / "lake/visits"), pa.table({"user": pa.array(users, pa.int64()), "at": at}), mode="append"
    )


def written(folder: Path) -> list[tuple[str, str]]:
    files = list((folder / "out/cities").glob("*.csv"))
    assert len(files) == 1
    with files[0].open() as lines:
        return sorted((row["city"], row["users"]) for row in csv.DictReader(lines))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("key: city", "key: []"), "sink-needs-key"),
        (("{type: endpoint}", "{type: http, url: 'http://localhost:1/'}"), "sink-takes-no-reports"),
        (("FROM visits v", "FROM vists v"), "unknown-input"),
        (("{type: lake, path: lake/visits}", "{type: files, path: in}, format: {type: raw}"), "report-input"),
        (("key: city", "key: city\n    after: [{type: now, column: t}]"), "report-steps"),
    ],
)
def test_what_cannot_be_a_report_is_refused(tmp_path: Path, change: tuple[str, str], code: str) -> None:
    with pytest.raises(ProjectErrors) as refused:
        make_plan(project(tmp_path, PROJECT.replace(*change)))
    assert code in [error.code for error in refused.value.errors]


def test_a_plan_says_that_it_is_one(tmp_path: Path) -> None:
    scheduled = PROJECT.replace("over: all", "over: all\n    schedule: 30 0 * * *")
    plan = make_plan(project(tmp_path, scheduled))
    told = list(to_text(plan))
    assert told[0] == "flow cities  (at 30 0 * * *, exactly_once, a report)"
    assert "  ◂ visits: lake table, current rows" in told
    assert [one["through"] for one in to_json(plan)["flows"][0]["inputs"]] == ["as it stands"] * 2


@pytest.mark.spark
def test_each_run_replaces_the_last(tmp_path: Path, spark: SparkSession) -> None:
    loaded = project(tmp_path)
    tables, state = ListTables(loaded, loaded), StateDir.of(loaded.context)
    starter = FlowStarter(loaded, state, spark)
    flow = make_plan(loaded).flow("cities")
    changes: list[list[dict[str, Any]]] = []

    def run() -> None:
        query = starter.start(flow)
        query.awaitTermination()
        assert query.exception() is None
        log = Settings.of(loaded).logs.open("cities", 1)
        segment = log.after(len(changes), 1)
        changes.append([row for one in segment for batch in log.changes(one) for row in batch.to_pylist()])

    visit(tmp_path, 1, 2, 3)
    visit(tmp_path, 4, ago=timedelta(days=2))
    tables.feed("users", [{"id": n, "city": city} for n, city in enumerate(["Pune", "Pune", "Goa", "Goa"], start=1)])
    run()
    assert written(tmp_path) == [("Goa", "1"), ("Pune", "2")]
    visit(tmp_path, 4)
    tables.delete("users", [{"id": 1}, {"id": 2}])
    # a run that was cut off reads what it read before, whatever has come since
    generation = state.generations("cities").current()
    assert generation is not None
    for mark in ("0", ".0.crc"):
        (Path(str(generation.checkpoint_folder)) / "commits" / mark).unlink()
    for mark in (generation.folder / "report/0").iterdir():
        mark.unlink()
    runs_before = generation.checkpoint.batch(0)
    run()
    assert generation.checkpoint.batch(0) == runs_before
    assert written(tmp_path) == [("Goa", "2")]
    told = {(row["__op"], row["city"], row["users"]) for row in changes[1]}
    assert told == {(2, "Goa", 2), (3, "Pune", 2)}
    runs = Runner(starter, make_plan(loaded), scheduled=False).run(seconds=120)
    assert [(one.state, one.error) for one in runs] == [("stopped", None)]
    assert written(tmp_path) == [("Goa", "2")]
