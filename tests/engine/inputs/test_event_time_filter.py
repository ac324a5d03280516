"""The gate before the watermark: every row goes on, is kept as late or comes from the future; Spark agrees on which."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.context import Context
from headrace.core.schema import from_ddl
from headrace.engine.inputs.decode import DecodeStep
from headrace.engine.inputs.event_time_filter import EventTimeFilter, EventTimeFilterStep
from headrace.engine.letters.dead_letters import DeadLetterWriter, read_dead_letters
from headrace.engine.letters.late_rows import LateRowWriter, read_late_rows
from headrace.engine.state.batch_clock import BatchClock, BatchTimes
from headrace.engine.state.checkpoints import Checkpoint
from headrace.formats.json import JsonFormat
from headrace.project.model import EventTime
from headrace.sql.lateness import LateRule
from headrace.testing.harness import ProjectHarness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND = 1_000_000
HOUR = 3600 * SECOND
NOW = 1_767_225_600 * SECOND
"""2026-01-01, the time of the batch; the watermark is ten seconds before it."""
TIMES = BatchTimes(batch_id=7, task=3, timestamp=NOW, watermark=NOW - 10 * SECOND)
FIVE = LateRule(5 * SECOND, 5 * SECOND)


def gate(folder: Path, rule: LateRule | None = FIVE, **event_time: Any) -> EventTimeFilter:
    clock = BatchClock(Path("unused"), TIMES)
    box = LateRowWriter(folder / "late", "flow", "stream", "g1") if rule else None
    return EventTimeFilter(EventTime(column="at", **event_time), clock, rule, box)


def rows(*micros: int | None) -> pa.RecordBatch:
    ids = pa.array(range(len(micros)), pa.int64())
    times = pa.array(micros, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    return pa.RecordBatch.from_arrays([ids, times], names=["id", "at"])


def through(folder: Path, made: EventTimeFilter, *batches: pa.RecordBatch, **options: Any) -> list[dict[str, Any]]:
    step = EventTimeFilterStep(made, DeadLetterWriter(folder / "letters", "flow", "stream", "g1"), **options)
    return [row for batch in step(iter(batches)) for row in batch.to_pylist()]


def late(folder: Path) -> list[dict[str, Any]]:
    return sorted(read_late_rows(folder / "late").to_pylist(), key=lambda row: str(row["row"]))


def letters(folder: Path) -> list[dict[str, Any]]:
    return sorted(read_dead_letters(folder / "letters").to_pylist(), key=lambda row: str(row["value"]))


def test_a_row_is_late_when_its_window_ended_at_the_watermark(tmp_path: Path) -> None:
    bound = NOW - 10 * SECOND
    passed = through(tmp_path, gate(tmp_path), rows(bound - 1, bound, NOW))
    assert [row["id"] for row in passed] == [1, 2]
    (kept,) = late(tmp_path)
    assert (kept["flow"], kept["stream"], kept["generation"], kept["batch"]) == ("flow", "stream", "g1", 7)
    assert kept["event_time"] == datetime.fromtimestamp((bound - 1) / SECOND, UTC)
    assert kept["watermark"] == datetime.fromtimestamp(bound / SECOND, UTC)
    assert json.loads(kept["row"]) == {"id": 0, "at": kept["event_time"].isoformat()}
    assert kept["position"] is None


def test_without_a_rule_nothing_is_late(tmp_path: Path) -> None:
    assert len(through(tmp_path, gate(tmp_path, None), rows(0, NOW))) == 2
    assert late(tmp_path) == []


def test_a_record_from_the_future_is_a_dead_letter(tmp_path: Path) -> None:
    limit = NOW + HOUR
    passed = through(tmp_path, gate(tmp_path, max_future="1h"), rows(limit, limit + 1, NOW))
    assert [row["id"] for row in passed] == [0, 2]
    (letter,) = letters(tmp_path)
    assert letter["reason"] == "future-event-time"
    assert "2026-01-01T01:00:00.000001" in letter["detail"]
    assert json.loads(letter["value"])["id"] == 1


def test_a_record_from_the_future_can_get_the_time_of_its_batch(tmp_path: Path) -> None:
    passed = through(tmp_path, gate(tmp_path, on_future="clamp"), rows(NOW + 2 * HOUR, NOW - 1))
    assert [row["at"] for row in passed] == [
        datetime.fromtimestamp(NOW / SECOND, UTC),
        datetime.fromtimestamp((NOW - 1) / SECOND, UTC),
    ]
    assert letters(tmp_path) == []


def test_any_time_may_be_allowed(tmp_path: Path) -> None:
    assert len(through(tmp_path, gate(tmp_path, max_future=None), rows(NOW * 100))) == 1


def test_times_that_python_does_not_have(tmp_path: Path) -> None:
    """A number of the wrong unit: tens of thousands of years ahead, or long before year 1."""
    passed = through(tmp_path, gate(tmp_path), rows(NOW * 1000, -NOW * 1000, NOW))
    assert [row["id"] for row in passed] == [2]
    assert letters(tmp_path)[0]["detail"].startswith("at is after year 9999")
    table = read_late_rows(tmp_path / "late")
    assert table["event_time"].cast(pa.int64()).to_pylist() == [-NOW * 1000]
    assert json.loads(table["row"][0].as_py()) == {"id": 1, "at": -NOW * 1000}


def test_a_row_without_a_time_is_a_dead_letter(tmp_path: Path) -> None:
    passed = through(tmp_path, gate(tmp_path), rows(None, NOW, 0, None, NOW + 2 * HOUR))
    assert [row["id"] for row in passed] == [1]
    assert [json.loads(row["row"])["id"] for row in late(tmp_path)] == [2]
    found = {json.loads(letter["value"])["id"]: letter["reason"] for letter in letters(tmp_path)}
    assert found == {0: "no-event-time", 3: "no-event-time", 4: "future-event-time"}


def test_rows_are_named_by_their_position_which_goes_no_further(tmp_path: Path) -> None:
    batch = rows(0, NOW, NOW + 2 * HOUR).append_column("_offset", pa.array([10, 11, 12]))
    passed = through(tmp_path, gate(tmp_path), batch, position=("_offset",), extra=("_offset",))
    assert passed == rows(0, NOW).to_pylist()[1:]
    assert [row["position"] for row in late(tmp_path)] == ['{"offset": 10}']
    assert [letter["position"] for letter in letters(tmp_path)] == ['{"offset": 12}']


@pytest.mark.parametrize("position", [(), ("id",)])
def test_a_batch_that_runs_again_leaves_each_row_once(tmp_path: Path, position: tuple[str, ...]) -> None:
    for _attempt in range(2):
        through(tmp_path, gate(tmp_path), rows(0, 1, NOW), rows(2, NOW * 2, 2), position=position)
    files = list((tmp_path / "late" / "flow" / "stream").iterdir())
    assert [file.name for file in files] == ["g1-0000000007-00003-000.parquet"]
    assert len(late(tmp_path)) == (4 if not position else 3)  # by position the two batches overlap
    assert len(letters(tmp_path)) == 1


def test_many_late_rows_are_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.engine.letters.task_rows._FLUSH_BYTES", 1000)
    through(tmp_path, gate(tmp_path), rows(*range(10)))
    assert len(list((tmp_path / "late" / "flow" / "stream").iterdir())) > 1
    assert len(late(tmp_path)) == 10


MOMENTS = st.one_of(st.none(), st.integers(NOW - 20 * SECOND, NOW), st.integers(NOW, NOW + 3 * HOUR))


@given(st.lists(st.lists(MOMENTS, max_size=6), max_size=4))
def test_in_is_out_plus_late_plus_dead_letters(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int | None]]
) -> None:
    folder = tmp_path_factory.mktemp("gate")
    offsets = iter(range(100))
    made = [
        rows(*given).append_column("_offset", pa.array([next(offsets) for _ in given], pa.int64())) for given in batches
    ]
    passed = through(folder, gate(folder), *made, position=("_offset",))
    aside = [json.loads(one["position"])["offset"] for one in (*late(folder), *letters(folder))]
    assert sorted([*aside, *(row["_offset"] for row in passed)]) == list(range(sum(map(len, batches))))


def test_the_decode_step_has_the_same_gate(tmp_path: Path) -> None:
    columns = "id bigint, at bigint"
    context = Context(tmp_path, str(tmp_path))
    made = gate(tmp_path)
    step = DecodeStep(
        decoder=JsonFormat(columns=columns).decoder(context, from_ddl(columns)),
        position=("_offset",),
        metadata=(),
        filters=(),
        event_time=made.event_time,
        on_error="fail",
        letters=DeadLetterWriter(tmp_path / "letters", "flow", "stream", "g1"),
        time_filter=made,
    )
    moments = [NOW, 0, NOW + 2 * HOUR, NOW]
    values = [json.dumps({"id": i, "at": moment // 1000}).encode() for i, moment in enumerate(moments)]
    batch = pa.RecordBatch.from_arrays([pa.array(values), pa.array(range(40, 44))], names=["value", "_offset"])
    assert [row["id"] for out in step(iter([batch])) for row in out.to_pylist()] == [0, 3]
    assert [row["position"] for row in late(tmp_path)] == ['{"offset": 41}']
    assert [(letter["position"], letter["value"]) for letter in letters(tmp_path)] == [('{"offset": 42}', values[2])]


PROJECT = """
project: late
streams:
  clicks:
    source: {type: kafka, brokers: "never-asked:9092", topic: t}
    format: {type: json, columns: "id bigint, at timestamp"}
    event_time: {column: at, watermark: 2s, late: drop}
  kept:
    source: {type: kafka, brokers: "never-asked:9092", topic: t}
    format: {type: json, columns: "id bigint, at timestamp"}
    event_time: {column: at, watermark: 2s}
flows:
  tumbling:
    sql: SELECT window.end AS till, count(*) AS n FROM clicks GROUP BY window(at, '4 seconds')
    sinks: [noop]
  gated:
    sql: SELECT window.end AS till, count(*) AS n FROM kept GROUP BY window(at, '4 seconds')
    sinks: [noop]
  sliding:
    sql: SELECT window.end AS till, count(*) AS n FROM clicks GROUP BY window(at, '6 seconds', '3 seconds', '1 second')
    sinks: [noop]
  session:
    sql: SELECT session_window.end AS till, id, count(*) AS n FROM clicks GROUP BY session_window(at, '3 seconds'), id
    sinks: [noop]
  seen: {sql: "SELECT DISTINCT id, at AS till, 1 AS n FROM clicks", sinks: [noop]}
"""
START = datetime(2026, 1, 1, tzinfo=UTC)
SEED = 11


@dataclass(frozen=True)
class Row:
    id: int
    seconds: int

    @property
    def time(self) -> int:
        return NOW + self.seconds * SECOND


def feeds() -> list[list[Row]]:
    """Batches of rows in disorder; the last one closes all windows.

    The newest row of each batch puts the watermark on the end of a window, so that rows lie on both sides of the bound.
    """
    draw = random.Random(SEED)
    numbers = iter(range(10_000))
    newest = [10 + 4 * k for k in range(5)]
    made = [[Row(next(numbers), top - late) for late in (0, *draw.choices(range(16), k=60))] for top in newest]
    return [*made, [Row(next(numbers), 3600)]]


@dataclass(frozen=True)
class OffByOne(LateRule):
    """What the rule would be with `<` instead of `<=`."""

    def bound(self, watermark: int) -> int:
        return super().bound(watermark - 1)


def ends(rule: LateRule, time: int) -> list[int]:
    """The ends of all windows that hold a row."""
    last = rule.end(time)
    return list(range(last, time, -rule.slide)) if rule.slide > 1 else [last]


def accounted(rule: LateRule, checkpoint: Checkpoint, found: list[dict[str, Any]]) -> bool:
    """Whether the rows that the rule lets through are exactly those that Spark has counted."""
    expected: dict[int, int] = {}
    for batch_id, fed in enumerate(feeds()[:-1]):
        before = checkpoint.batch(batch_id - 1)
        bound = rule.bound(before.watermark_ms * 1000 if before else 0)
        for row in fed:
            for end in ends(rule, row.time):
                # a sliding window may be closed while a later one of the same row is open
                if row.time - (rule.end(row.time) - end) >= bound:
                    expected[end] = expected.get(end, 0) + 1
    counted: dict[int, int] = {}
    for one in found:
        end = round(one["till"].timestamp() * SECOND)
        counted[end] = counted.get(end, 0) + one["n"]
    return expected == counted


RULES = {
    "tumbling": LateRule(4 * SECOND, 4 * SECOND),
    "sliding": LateRule(6 * SECOND, 3 * SECOND, SECOND),
    "session": LateRule(3 * SECOND),
    "seen": LateRule(),
}


@pytest.mark.spark
def test_spark_drops_what_the_rule_says(tmp_path: Path, spark: SparkSession) -> None:
    """Late rows in the test's own reckoning, from Spark's records of its batches, against Spark's results."""
    (tmp_path / "headrace.yaml").write_text(PROJECT)
    with ProjectHarness(tmp_path, spark) as harness:
        for fed in feeds():
            made = [{"id": row.id, "at": (START + timedelta(seconds=row.seconds)).isoformat()} for row in fed]
            harness.feed("clicks", made)
            harness.feed("kept", made)
        for flow in (*RULES, "gated"):
            harness.restart()  # a flow that has nothing left to do still takes its share of the machine
            harness.run(flow)
        for flow, rule in RULES.items():
            checkpoint = harness._state.current(flow).checkpoint
            assert accounted(rule, checkpoint, harness.rows(flow)), f"{flow}, seed {SEED}"
            planted = OffByOne(rule.size, rule.slide, rule.offset)
            assert not accounted(planted, checkpoint, harness.rows(flow)), (
                f"{flow}: no row lies on a bound, seed {SEED}"
            )
        kept = harness.late_rows("gated")
        assert harness.rows("gated") == harness.rows("tumbling")
        assert sum(row["n"] for row in harness.rows("gated")) + len(kept) == sum(map(len, feeds()[:-1]))
        assert len(kept) > 10
        assert harness.late_rows("tumbling") == []
        dropped = [
            operator["numRowsDroppedByWatermark"]
            for progress in harness._queries["gated"].recentProgress
            for operator in progress["stateOperators"]
        ]
        assert dropped
        assert set(dropped) == {0}
        _replay(harness)
        assert [replace_times(row) for row in harness.late_rows("gated")] == [replace_times(row) for row in kept]


def replace_times(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "met_at": None}


def _replay(harness: ProjectHarness) -> None:
    """Let the last batches run again, as after a crash before their commit."""
    harness.restart()
    folder = harness._state.current("gated").checkpoint_folder
    for name in ("commits", "offsets"):
        for batch_id in range(4 if name == "commits" else 5, 20):
            for file in (folder / name / str(batch_id), folder / name / f".{batch_id}.crc"):
                file.unlink(missing_ok=True)
    harness.run("gated")


JOIN = """
project: joined
streams:
  orders:
    source: {type: kafka, brokers: "never-asked:9092", topic: t}
    format: {type: json, columns: "id bigint, at timestamp"}
    event_time: {column: at, watermark: 2s, late: drop}
  payments:
    source: {type: kafka, brokers: "never-asked:9092", topic: t}
    format: {type: json, columns: "id bigint, paid_at timestamp"}
    event_time: {column: paid_at, watermark: 4s, late: drop}
flows:
  paid:
    sql: |
      SELECT o.id FROM orders o JOIN payments p
      ON o.id = p.id AND p.paid_at BETWEEN o.at AND o.at + INTERVAL 5 SECONDS
    sinks: [noop]
"""


@pytest.mark.spark
def test_a_join_drops_what_the_rule_says(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "headrace.yaml").write_text(JOIN)
    fed = feeds()[:4]
    with ProjectHarness(tmp_path, spark) as harness:
        for batch in fed:
            made = [{"id": row.id, "at": (START + timedelta(seconds=row.seconds)).isoformat()} for row in batch]
            harness.feed("orders", made)
            harness.feed("payments", [{"id": row["id"], "paid_at": row["at"]} for row in made])
        harness.run()
        checkpoint = harness._state.current("paid").checkpoint
        records = [checkpoint.batch(number - 1) for number in range(len(fed))]
        bounds = [record.watermark_ms * 1000 if record else 0 for record in records]
        times = [(row.time, bound) for batch, bound in zip(fed, bounds, strict=True) for row in batch]
        counts = {rule: 2 * sum(t < rule.bound(w) for t, w in times) for rule in (LateRule(), OffByOne())}
        dropped = sum(
            operator["numRowsDroppedByWatermark"]
            for progress in harness._queries["paid"].recentProgress
            if progress["numInputRows"]
            for operator in progress["stateOperators"]
        )
        assert counts[LateRule()] == dropped > counts[OffByOne()] > 0
        assert len(harness.rows("paid")) == sum(map(len, fed)) - dropped // 2
