"""Traps of Spark 4.2 around event time: each is sprung here, and does not bite."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from headrace.engine.flows.flow import FlowStarter
from headrace.engine.inputs.heartbeat import due, heartbeat_file, read_heartbeat, write_heartbeat
from headrace.engine.letters.dead_letters import read_dead_letters
from headrace.engine.letters.late_rows import read_late_rows
from headrace.engine.state.state import StateDir
from headrace.plan.planner import make_plan
from headrace.project.loader import Project, load
from headrace.project.model import EventTime
from headrace.testing.lists import ListSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("kind", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
START = datetime(2026, 1, 1, tzinfo=UTC)


class Flow:
    """One flow of a project over real files, its rows in a list; every `run` is a start from the checkpoint."""

    def __init__(self, folder: Path, text: str, spark: SparkSession) -> None:
        (folder / "headrace.yaml").write_text(text)
        given = load(folder)
        self.folder = folder
        self.spark = spark
        self.sink = ListSink()
        flows = {name: flow.model_copy(update={"sinks": [self.sink]}) for name, flow in given.spec.flows.items()}
        spec = given.spec.model_copy(update={"flows": flows})
        self.project = Project(given.root, spec, given.tree, given.secrets, given.profile)
        self.state = StateDir(folder / "state")
        self.progress: list[dict[str, Any]] = []
        for name in spec.streams:
            (folder / name).mkdir()

    def put(self, stream: str, *moments: datetime | float) -> None:
        """A file of rows; numbers are seconds after the start."""
        times = [START + timedelta(seconds=m) if isinstance(m, int | float) else m for m in moments]
        rows = [{"kind": stream, "n": 1, "at": time} for time in times]
        name = f"{len(list((self.folder / stream).iterdir()))}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), self.folder / name)
        (self.folder / name).rename(self.folder / stream / name)

    def run(self) -> list[dict[str, Any]]:
        """Take in all there is, and give all rows so far."""
        (flow,) = make_plan(self.project).flows
        query = FlowStarter(self.project, self.state, self.spark, until_caught_up=True).start(flow)
        query.awaitTermination()
        self.progress = list(query.recentProgress)
        return self.sink.rows

    def watermark(self) -> datetime:
        """As Spark reports it after the last run."""
        return datetime.fromisoformat(self.progress[-1]["eventTime"]["watermark"])

    def newest(self, stream: str) -> datetime | None:
        """The newest time of a stream that was observed in the last run."""
        seen = [one["observedMetrics"][f"input:{stream}"].newest for one in self.progress]
        return max(
            (datetime.fromisoformat(time).replace(tzinfo=UTC) for time in seen if time is not None), default=None
        )


def streams(*names: str, event_time: str = "") -> str:
    source = 'source: {type: files, contains: parquet, columns: "kind string, n bigint, at timestamp", path: '
    lines = [f"  {name}: {{{source}{name}}}{', event_time: ' + event_time if event_time else ''}}}" for name in names]
    return "\n".join(["project: traps", "streams:", *lines, ""])


UNTIMED_UNION = """
flows:
  f:
    output: update
    sql: |
      SELECT kind, sum(n) AS n
      FROM (SELECT 'a' AS kind, n FROM a UNION ALL SELECT kind, n FROM b) GROUP BY kind
    sinks: [noop]
"""
TIMED_UNION = """
flows:
  f:
    sql: |
      SELECT window.start AS since, count(*) AS n
      FROM (SELECT 'a' AS kind, at FROM a UNION ALL SELECT kind, at FROM b) GROUP BY window(at, '10 seconds')
    sinks: [noop]
"""


@pytest.mark.spark
def test_t1_a_union_with_an_empty_branch_keeps_the_schema_of_its_state(tmp_path: Path, spark: SparkSession) -> None:
    """Without rows in `b`, Spark takes `kind` for never null, and would not find its state again when it has some."""
    flow = Flow(tmp_path, streams("a", "b") + UNTIMED_UNION, spark)
    flow.put("a", 0, 0)
    assert [(row["kind"], row["n"]) for row in flow.run()] == [("a", 2)]
    flow.put("b", 0)
    assert [(row["kind"], row["n"]) for row in flow.run()[1:]] == [("b", 1)]
    flow.put("a", 0)
    assert [(row["kind"], row["n"]) for row in flow.run()[2:]] == [("a", 3)]


@pytest.mark.spark
def test_t1_all_columns_that_enter_state_may_be_null(tmp_path: Path, spark: SparkSession) -> None:
    flow = Flow(tmp_path, streams("a", "b", event_time="at") + TIMED_UNION, spark)
    (plan,) = make_plan(flow.project).flows
    starter = FlowStarter(flow.project, flow.state, spark)
    rows = starter.rows(plan)
    for name in ("a", "b"):
        assert all(field.nullable for field in rows.sparkSession.table(name).schema)


@pytest.mark.spark
def test_t5_an_idle_input_holds_windows_back_only_as_long_as_it_may(tmp_path: Path, spark: SparkSession) -> None:
    text = streams("a", "b", event_time="{column: at, watermark: 1s}") + TIMED_UNION
    before, after = text.rsplit("watermark: 1s", 1)
    flow = Flow(tmp_path, f"{before}watermark: 1s, idle: 30s{after}", spark)
    flow.put("a", 1, 2, 21)
    flow.put("b", 3, 21)
    assert [row["n"] for row in flow.run()] == [3]
    assert flow.watermark() == START + timedelta(seconds=20)
    # after the restart only `a` has rows: the watermark stands, and it can be seen on which input it waits
    flow.put("a", 50)
    assert len(flow.run()) == 1
    assert (flow.newest("a"), flow.newest("b")) == (START + timedelta(seconds=50), None)
    # the supervisor finds `b` idle
    heartbeat = due(START + timedelta(seconds=75), START + timedelta(seconds=30), True, timedelta(seconds=30))
    assert heartbeat is not None
    write_heartbeat(flow.state, "f", "b", heartbeat)
    flow.put("a", 51)
    assert [row["n"] for row in flow.run()[1:]] == [2]
    assert flow.watermark() == START + timedelta(seconds=45)
    # a heartbeat is no row
    assert sum(one["observedMetrics"]["input:b"].rows for one in flow.progress) == 0


def test_t5_a_stream_is_idle_only_when_it_is_caught_up_and_quiet_for_long() -> None:
    now, idle = START + timedelta(minutes=5), timedelta(seconds=30)
    assert due(now, now - timedelta(seconds=29), True, idle) is None
    expected = round((now - idle).timestamp() * 1000)
    assert due(now, now - timedelta(seconds=30), True, idle) == expected
    assert due(now + timedelta(seconds=2.9), now - timedelta(seconds=30), True, idle) == expected
    assert due(now + timedelta(seconds=3), now - timedelta(seconds=30), True, idle) == expected + 3000
    assert due(now, now - timedelta(hours=1), False, idle) is None
    assert due(now, None, True, idle) is None


def test_t5_a_heartbeat_is_for_one_generation(tmp_path: Path) -> None:
    """A rewound flow reads old records again: yesterday's heartbeat must not make them late."""
    state = StateDir(tmp_path)
    first = state.current("f")
    write_heartbeat(state, "f", "s", 77)
    file = heartbeat_file(state, "f", "s")
    assert read_heartbeat(file, first.id) == 77
    state.generations("f").switch(state.generations("f").make("rewind"))
    assert read_heartbeat(file, state.current("f").id) is None
    assert read_heartbeat(file.with_name("other"), first.id) is None


def test_t5_idle_must_not_be_shorter_than_the_watermark() -> None:
    with pytest.raises(ValidationError, match="at least 'watermark'"):
        EventTime.model_validate({"column": "at", "watermark": "10s", "idle": "9s"})


@pytest.mark.spark
def test_t6_a_time_of_the_far_future_does_not_move_the_watermark(tmp_path: Path, spark: SparkSession) -> None:
    sql = "SELECT window.start AS since, count(*) AS n FROM a GROUP BY window(at, '10 seconds')"
    text = f'flows: {{f: {{sql: "{sql}", sinks: [noop]}}}}\n'
    flow = Flow(tmp_path, streams("a", event_time="{column: at, watermark: 1s}") + text, spark)
    flow.put("a", 1, datetime(2125, 1, 1, tzinfo=UTC), 12)
    flow.put("a", 2, 30)
    rows = flow.run()
    assert [row["n"] for row in rows] == [2, 1]
    assert flow.watermark() == START + timedelta(seconds=29)
    (letter,) = read_dead_letters(flow.state.dead_letters).to_pylist()
    assert (letter["reason"], letter["stream"]) == ("future-event-time", "a")
    assert json.loads(letter["value"])["at"].startswith("2125-01-01")
    assert json.loads(letter["position"])["row"] == 1


def test_t7_a_watermark_without_delay_is_refused() -> None:
    with pytest.raises(ValidationError):
        EventTime.model_validate({"column": "at", "watermark": "0s"})


@pytest.mark.spark
def test_t7_with_the_least_delay_rows_as_new_as_the_newest_count(tmp_path: Path, spark: SparkSession) -> None:
    text = 'flows: {f: {sql: "SELECT DISTINCT n, at FROM a", sinks: [noop]}}\n'
    flow = Flow(tmp_path, streams("a", event_time="{column: at, watermark: 1ms}") + text, spark)
    for _batch in range(2):
        flow.put("a", 5)
        flow.run()
    flow.put("a", 5.001, 5, 4.999, 10)
    flow.run()
    times = sorted(row["at"] for row in flow.sink.rows)
    assert times == [START + timedelta(seconds=5), START + timedelta(seconds=5.001)]
    late = [json.loads(row["row"])["at"] for row in read_late_rows(flow.state.late).to_pylist()]
    assert late == [(START + timedelta(seconds=4.999)).isoformat()]
