"""The kit that users test their projects with."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.core.errors import ProjectError
from headrace.project.loader import load
from headrace.testing.cases import Case, compare, load_case, run_case
from headrace.testing.clock import Clock
from headrace.testing.harness import ProjectHarness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROJECT = """
project: harness
streams:
  clicks:
    source: {type: kafka, brokers: "never-asked:9092", topic: clicks}
    format: {type: json, columns: "user string, at timestamp"}
    event_time: {column: at, watermark: 5s}
flows:
  per_user:
    sql: |
      SELECT window.start AS since, user, count(*) AS n
      FROM clicks GROUP BY window(at, '10 seconds'), user
    sinks: [{type: lake, path: lake/per_user}]
  busy:
    sql: SELECT since, user, n FROM per_user WHERE n > 1
    sinks: [console]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "headrace.yaml").write_text(PROJECT)
    return tmp_path


@pytest.mark.spark
def test_rows_in_rows_out_over_a_restart(folder: Path, spark: SparkSession) -> None:
    clock = Clock("2026-01-01T00:00:00Z")
    with ProjectHarness(folder, spark) as harness:
        harness.feed("clicks", [{"user": "a", "at": clock.iso}, {"user": "a", "at": clock.iso}, "not json"])
        harness.run()
        assert harness.rows("per_user") == []
        harness.restart()
        clock.advance("1min")
        harness.feed("clicks", [{"user": "b", "at": clock.iso}])
        harness.run()
        since = datetime(2026, 1, 1, tzinfo=UTC)
        assert harness.rows("per_user") == [{"since": since, "user": "a", "n": 2}]
        assert harness.rows("busy") == harness.rows("per_user")
        assert [letter["value"] for letter in harness.dead_letters("busy")] == [b"not json"]


@pytest.mark.spark
def test_a_case_says_what_differs(folder: Path, spark: SparkSession) -> None:
    (folder / "tests").mkdir()
    file = folder / "tests" / "a.yaml"
    file.write_text(
        "flow: per_user\n"
        "steps:\n"
        "  - feed: {clicks: [{user: a, at: 2026-01-01T00:00:01Z}, {user: b, at: 2026-01-01T00:01:00Z}]}\n"
        "  - expect: {rows: [{user: a, n: 2}]}\n"
    )
    with ProjectHarness(folder, spark) as harness:
        outcome = run_case("a", load_case(file, folder), harness.project, spark)
    assert not outcome.passed
    assert 'missing: {"n": 2, "user": "a"}' in outcome.detail
    assert 'not expected: {"n": 1, "user": "a"}' in outcome.detail


@pytest.mark.spark
def test_unknown_names_are_refused(folder: Path, spark: SparkSession) -> None:
    with ProjectHarness(folder, spark) as harness:
        with pytest.raises(ProjectError, match="no stream 'click'") as found:
            harness.feed("click", [])
        assert "did you mean 'clicks'" in (found.value.hint or "")
        with pytest.raises(ProjectError, match="flow 'x' does not exist"):
            harness.rows("x")


def test_a_case_with_a_wrong_key_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("flow: x\nsteps:\n  - fed: {}\n")
    with pytest.raises(ProjectError) as found:
        load_case(file, tmp_path)
    assert (found.value.code, found.value.where and found.value.where.line) == ("unknown-key", 3)


def test_rows_are_compared_as_a_bag_on_the_named_columns() -> None:
    found = [{"a": 1, "b": 2.0}, {"a": 1, "b": 3.5}]
    assert compare([{"a": 1}, {"a": 1}], found) == ([], [])
    assert compare([{"a": 1}], found)[1] == ['{"a": 1}']
    assert compare([{"b": 2}, {"b": 3.5}], found) == ([], [])
    assert compare([], found)[1] == ['{"a": 1, "b": 2}', '{"a": 1, "b": 3.5}']


def test_the_clock_moves_only_when_told() -> None:
    clock = Clock("2026-01-01T00:00:00")
    assert clock.now == clock.now == datetime(2026, 1, 1, tzinfo=UTC)
    assert clock.advance("90s") == datetime(2026, 1, 1, 0, 1, 30, tzinfo=UTC)


@pytest.mark.spark
def test_views_of_a_project(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "headrace.yaml").write_text(
        """
project: shop
tables:
  orders: {source: {type: push, columns: "id bigint, region string, amount int", key: [id]}}
flows:
  revenue: {sql: "SELECT region, sum(amount) AS total FROM orders GROUP BY region", sinks: [endpoint]}
"""
    )
    case = Case.model_validate(
        {
            "flow": "revenue",
            "steps": [
                {"feed": {"orders": [{"id": 1, "region": "EU", "amount": 3}, {"id": 2, "region": "US", "amount": 4}]}},
                {"expect": {"rows": [{"region": "EU", "total": 3}, {"region": "US", "total": 4}]}},
                {"restart": True},
                {"feed": {"orders": [{"id": 1, "region": "US", "amount": 3}]}},
                {"expect": {"rows": [{"region": "US", "total": 7}]}},
                {"delete": {"orders": [{"id": 2}]}},
                {"expect": {"rows": [{"region": "US", "total": 3}]}},
            ],
        }
    )
    outcome = run_case("revenue", case, load(tmp_path), spark)
    assert outcome.passed, outcome.detail
