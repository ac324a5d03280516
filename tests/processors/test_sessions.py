from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.processors.memory_state import MemoryHandle, StepClockAt
from tests.processors.steps import Around

from headrace.core.errors import ProjectError, ProjectErrors
from headrace.core.schema import from_ddl
from headrace.plan.compare import compare
from headrace.plan.planner import make_plan
from headrace.plan.shape import shape_of
from headrace.processors.sessions import Sessions
from headrace.project.loader import load
from headrace.testing.harness import ProjectHarness

START = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = 1_000_000
VISIT = """
class Visit:
    columns = "who string, seen array<string>, n int"

    def __init__(self, every: int = 0) -> None:
        self.every, self.who, self.seen, self.finishes = every, None, [], 0

    def add(self, row):
        self.who = row["who"]
        self.seen.append(row["page"])
        return self._made() if row["page"] == "out" else []

    def finish(self):
        return self._made() if self.seen else []

    def _made(self):
        self.finishes += 1
        seen, self.seen = self.seen, []
        return [{"who": self.who, "seen": seen, "n": self.finishes}]

    def remember(self):
        return [self.who, self.seen, self.finishes]

    def recall(self, memory):
        self.who, self.seen, self.finishes = memory
"""
PROJECT = """
project: visits
streams:
  clicks:
    source: {type: generate, fields: {id: {sequence: 1}}}
    format: {type: json, columns: "who string, page string, at timestamp"}
flows:
  visits:
    before:
      clicks:
        - type: sessions
          key: [who]
          time: at
          class: processors/visit.py:Visit
          gap: 30s
          wait: 10s
    sql: SELECT who, seen, n FROM clicks
    sinks: [console]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "processors").mkdir()
    (tmp_path / "processors/visit.py").write_text(VISIT)
    (tmp_path / "headrace.yaml").write_text(PROJECT)
    return tmp_path


def changed(project: Path, old: str, new: str) -> Path:
    file = project / "headrace.yaml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    return project


def click(who: str | None, page: str, second: float) -> dict[str, Any]:
    return {"who": who, "page": page, "at": (START + timedelta(seconds=second)).isoformat()}


def told(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["who"], *row["seen"]) for row in rows]


@pytest.mark.spark
def test_sessions_end_when_time_has_passed_also_without_rows_of_their_key(project: Path, spark: Any) -> None:
    with ProjectHarness(project, spark) as harness:
        harness.feed("clicks", [click("a", "2", 5), click("a", "1", 0), click("b", "x", 3)])
        harness.run("visits")
        assert harness.rows("visits") == []
        harness.restart()
        # within what is waited for: sorted in before the others
        harness.feed("clicks", [click("a", "0", -4), click("c", "y", 44), click(None, "?", 44), click("d", "z", 9e9)])
        harness.run("visits")
        assert told(harness.rows("visits")) == [("b", "x")] or harness.rows("visits") == []
        harness.restart()
        harness.feed("clicks", [click("c", "out", 50), click("a", "late", 20), click("c", "on", 51)])
        harness.run("visits")
        assert sorted(told(harness.rows("visits"))) == [("a", "0", "1", "2"), ("b", "x")]
        harness.feed("clicks", [click("e", "w", 500)])
        harness.run("visits")
        assert sorted(told(harness.rows("visits"))[2:]) == [("c", "on"), ("c", "y", "out")]
        reasons = sorted(one["reason"] for one in harness.dead_letters("visits"))
        assert reasons == ["future-event-time", "late-row", "no-session-key"]
