"""A flow fills an endpoint; with other columns it fills a new version, which is served once it has caught up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.system.conftest import RunProject

from headrace.core.errors import ProjectError
from headrace.engine.positions.upgrade import detect_change, start_new_generation
from headrace.engine.state.state import StateDir
from headrace.log.folder import LogFolder
from headrace.plan.planner import make_plan
from headrace.project.loader import load

pytestmark = pytest.mark.spark

PROJECT = """
project: shop
streams:
  changes: {source: {type: files, path: changes}, format: {type: json, columns: "id bigint, state string, n int"}}
flows:
  orders: {sql: "SELECT COLUMNS FROM changes", sinks: [{type: endpoint, key: id}]}
"""


def write(folder: Path, columns: str) -> None:
    (folder / "headrace.yaml").write_text(PROJECT.replace("COLUMNS", columns))


def put(folder: Path, name: str, *rows: dict[str, Any]) -> None:
    (folder / "changes").mkdir(exist_ok=True)
    (folder / "changes" / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def held(logs: LogFolder, version: int) -> dict[int, str]:
    """The rows that a store would have."""
    log = logs.open("orders", version)
    return {
        row["id"]: row["state"]
        for segment in log.after(0)
        for batch in log.changes(segment)
        for row in batch.to_pylist()
    }


def test_other_columns_are_a_new_version(tmp_path: Path, run_project: RunProject) -> None:
    write(tmp_path, "id, state")
    put(tmp_path, "1.json", {"id": 1, "state": "new", "n": 1}, {"id": 2, "state": "new", "n": 2})
    run_project(tmp_path)
    put(tmp_path, "2.json", {"id": 1, "state": "paid", "n": 3})
    run_project(tmp_path)
    logs = LogFolder.of(load(tmp_path).context)
    assert (logs.served("orders"), held(logs, 1)) == (1, {1: "paid", 2: "new"})
    write(tmp_path, "id, state, n")
    with pytest.raises(ProjectError, match="columns of endpoint orders by id changed") as refused:
        run_project(tmp_path)
    assert refused.value.code == "needs-new-generation"
    project, state = load(tmp_path), StateDir.of(load(tmp_path).context)
    start_new_generation(project, state, detect_change(project, state, make_plan(project).flow("orders")))
    run_project(tmp_path)
    assert [one.version for one in logs.versions("orders")] == [1, 2]
    assert (logs.served("orders"), held(logs, 2)) == (2, {1: "paid", 2: "new"})
