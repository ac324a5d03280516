"""Flows of several inputs, flows that read flows, joins and deduplication, on generated and fed data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from tests.system.conftest import RunProject

from headrace.core.errors import ProjectError
from headrace.testing.harness import ProjectHarness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def write(folder: Path, text: str) -> Path:
    (folder / "headrace.yaml").write_text(text)
    return folder


def lake(folder: Path, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(str(folder / "lake" / name)).to_pyarrow_table().to_pylist()
    return rows


CHAIN = """
project: chain
streams:
  events:
    source:
      type: generate
      count: 2000
      rate: 100
      start: 2026-01-01T00:00:00Z
      bad_records: 0.05
      fields: {id: {sequence: 0}, service: {choice: [RIDE, FOOD]}, at: {time: event}}
    format: {type: json, columns: "id bigint, service string, at timestamp"}
    event_time: {column: at, watermark: 1s}
flows:
  rides:
    sql: SELECT id, at FROM events WHERE service = 'RIDE'
    event_time: {column: at, watermark: 1s}
    sinks: [{type: lake, path: lake/rides}]
  even:
    sql: SELECT id, at FROM rides WHERE id % 2 = 0
    event_time: at
    sinks: [{type: lake, path: lake/even}]
  per_window:
    sql: SELECT window.start AS since, count(*) AS n FROM rides GROUP BY window(at, '5 seconds')
    sinks: [{type: lake, path: lake/per_window}]
"""


def test_flows_read_flows_through_their_lake_tables(tmp_path: Path, run_project: RunProject) -> None:
    folder = write(tmp_path, CHAIN)
    run_project(folder)
    rides = {row["id"] for row in lake(folder, "rides")}
    assert {row["id"] for row in lake(folder, "even")} == {n for n in rides if n % 2 == 0}
    seconds = [row["at"].timestamp() for row in lake(folder, "rides")]
    windows = lake(folder, "per_window")
    assert windows
    for row in windows:
        since = row["since"].timestamp()
        assert row["n"] == sum(since <= moment < since + 5 for moment in seconds)


JOIN = """
project: joined
streams:
  orders:
    source: {type: kafka, brokers: "unused:1", topic: t}
    format: {type: json, columns: "id string, amount double, at timestamp"}
    event_time: {column: at, watermark: 10s}
  payments:
    source: {type: kafka, brokers: "unused:1", topic: t}
    format: {type: json, columns: "order_id string, paid_at timestamp"}
    event_time: {column: paid_at, watermark: 10s}
flows:
  big:
    sql: SELECT id, amount, at FROM orders WHERE amount > 5
  paid:
    sql: |
      SELECT b.id, b.amount, p.paid_at
      FROM big AS b JOIN payments AS p
        ON b.id = p.order_id AND p.paid_at BETWEEN b.at AND b.at + INTERVAL 1 MINUTE
    sinks: [console]
  first_seen:
    sql: SELECT DISTINCT id, at FROM orders
    sinks: [console]
  totals:
    output: update
    sql: SELECT id, sum(amount) AS total FROM orders GROUP BY id
    sinks: [console]
"""


def test_stream_stream_join_over_an_inlined_flow(tmp_path: Path, spark: SparkSession) -> None:
    with ProjectHarness(write(tmp_path, JOIN), spark) as harness:
        orders = [("a", 10, 0), ("b", 1, 0), ("c", 20, 0), ("d", 30, 0)]
        harness.feed("orders", [{"id": i, "amount": a, "at": f"2026-01-01T00:00:{s:02}Z"} for i, a, s in orders])
        harness.run("paid")
        harness.restart()
        harness.feed("payments", [{"order_id": i, "paid_at": f"2026-01-01T00:{t}Z"} for i, t in
                                  [("a", "00:30"), ("b", "00:30"), ("c", "05:00")]])  # fmt: skip
        harness.run("paid")
        assert [row["id"] for row in harness.rows("paid")] == ["a"]


def test_deduplication_and_updates(tmp_path: Path, spark: SparkSession) -> None:
    with ProjectHarness(write(tmp_path, JOIN), spark) as harness:
        row = {"id": "a", "amount": 1, "at": "2026-01-01T00:00:00Z"}
        for _time in range(3):
            harness.feed("orders", [row, row])
            harness.run("first_seen", "totals")
        assert [row["total"] for row in harness.rows("totals")] == [2, 4, 6]
        harness.feed("orders", [{"id": "z", "amount": 1, "at": "2026-01-01T01:00:00Z"}])
        harness.run("first_seen")
        assert [row["id"] for row in harness.rows("first_seen")] == ["a"]


def test_columns_are_inferred_once_and_then_kept(tmp_path: Path, run_project: RunProject) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text(json.dumps({"id": 1, "at": "2026-01-01T00:00:00Z"}) + "\n")
    folder = write(
        tmp_path,
        "project: inferred\n"
        "streams: {s: {source: {type: files, path: in}, format: json}}\n"
        "flows: {copy: {sql: SELECT * FROM s, sinks: [{type: lake, path: lake/copy}]}}\n",
    )
    run_project(folder)
    (tmp_path / "in" / "b.json").write_text(json.dumps({"id": "text now", "more": 1}) + "\n")
    run_project(folder)
    assert [row["id"] for row in lake(folder, "copy")] == [1]
    assert set(lake(folder, "copy")[0]) == {"id", "at"}


def test_nothing_to_infer_from_is_an_error(tmp_path: Path, run_project: RunProject) -> None:
    (tmp_path / "in").mkdir()
    folder = write(
        tmp_path,
        "project: inferred\n"
        "streams: {s: {source: {type: files, path: in}, format: json}}\n"
        "flows: {copy: {sql: SELECT * FROM s, sinks: [noop]}}\n",
    )
    with pytest.raises(ProjectError) as found:
        run_project(folder)
    assert found.value.code == "schema-unknown"


def test_spark_finds_what_lint_cannot(tmp_path: Path, run_project: RunProject) -> None:
    folder = write(
        tmp_path,
        "project: wrong\n"
        "streams: {s: {source: {type: generate, count: 5, fields: {a: {sequence: 0}}}}}\n"
        "flows:\n"
        "  f:\n"
        "    sql: |\n"
        "      SELECT\n"
        "        nofunction(a) AS x FROM s\n"
        "    sinks: [noop]\n",
    )
    with pytest.raises(ProjectError) as found:
        run_project(folder)
    assert found.value.code == "unknown-function"
    assert found.value.where is not None
    assert found.value.where.line == 7
