"""Rows that a server refuses are dead letters of their flow, with the sink in place of the stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.sinks.conftest import Heard, Stage, stage  # noqa: F401  # a fixture
from tests.system.conftest import RunProject

from headrace.core.tallies.tally import ENGINE
from headrace.engine.letters.dead_letter_index import DeadLetterIndex
from headrace.engine.replay.replay_plan import ReplayPlanner
from headrace.engine.state.state import StateDir
from headrace.project.loader import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PROJECT = """
project: shop
streams:
  orders:
    source: {{type: files, path: in, contains: lines}}
    format: {{type: json, columns: "id bigint, name string"}}
flows:
  sent:
    sql: SELECT id, name FROM orders
    sinks: [{{type: http, url: "{url}/in", batch_size: 4}}]
"""


def test_refused_rows_are_letters_that_are_not_replayed(
    tmp_path: Path,
    run_project: RunProject,
    spark: SparkSession,
    stage: Stage,  # noqa: F811
) -> None:
    def answer(heard: Heard) -> tuple[int, bytes, dict[str, str]]:
        return (400, b"no id 5", {}) if any(row["id"] == 5 for row in json.loads(heard.body)) else (200, b"", {})

    stage.answer = answer
    (tmp_path / "in").mkdir()
    lines = [json.dumps({"id": n, "name": f"n{n}"}) for n in range(10)]
    (tmp_path / "in" / "orders.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "headrace.yaml").write_text(PROJECT.format(url=stage.url))
    run_project(tmp_path)
    taken = [row["id"] for heard in stage.heard if answer(heard)[0] == 200 for row in json.loads(heard.body)]
    assert sorted(taken) == [0, 1, 2, 3, 4, 6, 7, 8, 9]

    project = load(tmp_path)
    state = StateDir.of(project.context)
    shelf = DeadLetterIndex(state.dead_letters).read()
    (letter,) = shelf.newest(shelf.index, None)
    assert (letter["reason"], letter["detail"], letter["batch"]) == ("refused", "HTTP 400 no id 5", 0)
    assert letter["stream"].startswith("http-")
    plan = ReplayPlanner(project, state, shelf).plan(shelf.index, ())
    assert [(one.why.code, one.letters) for one in plan.refused] == [("replay-sink-letter", 1)]
    assert plan.replays == ()
    counts = {outcome: rows for (flow, _, outcome), rows in ENGINE.counts().items() if flow == "sent"}
    assert counts == {"written": 9, "refused": 1}
