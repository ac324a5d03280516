from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.processors.memory_state import MemoryHandle, StepClockAt
from tests.processors.steps import Around

from headrace.core.errors import ProjectError
from headrace.plan.checkpoint_shape import shape_of
from headrace.plan.compare import compare
from headrace.plan.planner import make_plan
from headrace.processors.history import History
from headrace.processors.history.window import TimeRanges, seen_by
from headrace.project.loader import load
from headrace.testing.harness import ProjectHarness

START = datetime(2026, 1, 1, tzinfo=UTC)
PROJECT = """
project: past
streams:
  orders:
    source: {type: generate, fields: {id: {sequence: 1}}}
    format: {type: json, columns: "id bigint, who string, amount bigint, at timestamp"}
    event_time: {column: at, max_future: null}
flows:
  looked:
    before:
      orders:
        - {type: history, key: [who], columns: [id, amount], keep: 1d, last: 1h, mode: write_read}
    sql: SELECT id, history FROM orders
    sinks: [console]
"""


def moments(*values: int) -> Any:
    return np.array(values, np.int64)


def model(past: list[int], new: list[int], since: list[int], until: list[int], limit: int | None, own: bool) -> Any:
    made = []
    everything = [*past, *new]
    for index in range(len(new)):
        visible = range(len(past) + index + (1 if own else 0))
        seen = [place for place in visible if since[index] <= everything[place] <= until[index]]
        seen.sort(key=lambda place: (everything[place], place), reverse=True)
        made.append(seen[:limit])
    return made


TIMES = st.lists(st.integers(0, 50), max_size=12).map(sorted)


@settings(max_examples=100, deadline=None)
@given(TIMES, TIMES, st.integers(0, 50), st.sampled_from([None, 1, 3]), st.booleans())
def test_an_event_sees_what_came_before_it(past: Any, new: Any, back: int, limit: int | None, own: bool) -> None:
    since, until = [time - back for time in new], new
    found = seen_by(moments(*past), moments(*new), TimeRanges(moments(*since), moments(*until)), limit, own)
    assert [one.tolist() for one in found] == model(past, new, since, until, limit, own)


EVENTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), min_size=1, max_size=8)
SECOND = 1_000_000


def work_of(names: list[str], schema: pa.Schema, handle: MemoryHandle, clock: StepClockAt, last: int, keep: int) -> Any:
    from headrace.processors.history.state import TIME
    from headrace.processors.history.work import HistoryWork, LookBack

    events = pa.schema([(TIME, pa.int64()), *(schema.field(name) for name in names)])
    work = HistoryWork(tuple(names), events, "history", LookBack(last * SECOND), keep * SECOND, "at", clock)
    work.open(handle)  # type: ignore[arg-type]
    return work


def rows_of(keys: list[int], seconds: list[int], first: int) -> pa.Table:
    from headrace.processors._keyed.state import HIGH, KEYLESS, LOW

    numbers = pa.array(range(first, first + len(keys)), pa.int64())
    return pa.table(
        {"n": numbers, "at": pa.array([one * SECOND for one in seconds], pa.int64()).cast(pa.timestamp("us", "UTC")),
         HIGH: pa.array(keys, pa.int64()), LOW: pa.array(keys, pa.int64()),
         KEYLESS: pa.array([False] * len(keys), pa.bool_())}
    )  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(st.lists(EVENTS, max_size=12), st.integers(0, 60))
def test_over_many_batches_the_past_is_complete_and_what_is_old_is_forgotten(batches: list[Any], last: int) -> None:
    clock, handle, keep = StepClockAt(), MemoryHandle(), 60
    schema = pa.schema([("n", pa.int64())])
    known: list[tuple[int, int, int]] = []
    for number, batch in enumerate(batches):
        clock.now = number * 20 * SECOND
        keys, seconds = [key for key, _ in batch], [number * 20 + time for _, time in batch]
        work = work_of(["n"], schema, handle, clock, last, keep)
        made = work.take(rows_of(keys, seconds, len(known)))
        order = sorted(range(len(batch)), key=lambda place: (seconds[place], place))
        fresh = [(keys[place], seconds[place], len(known) + place) for place in order]
        for index, (key, second, n) in enumerate(fresh):
            before = [one for one in [*known, *fresh[:index]] if one[0] == key and second - last <= one[1] <= second]
            before.sort(key=lambda one: one[1])
            seen = made["history"].to_pylist()[made["n"].to_pylist().index(n)]
            assert [event["n"] for event in seen] == [one[2] for one in reversed(before)]
        known += sorted(fresh, key=lambda one: one[2])
    clock.now += 1000 * SECOND
    work_of(["n"], schema, handle, clock, last, keep).take(rows_of([5], [10_000], 10_000))
    assert len(handle.held["events"].values) == len(handle.held["slices"].values) == 1
    assert len(handle.held["agenda"].values) == 1


def test_columns_may_come_later_and_types_may_not_change() -> None:
    clock, handle = StepClockAt(), MemoryHandle()
    rows = rows_of([1], [0], 0)
    work_of(["n"], pa.schema([("n", pa.int64())]), handle, clock, 60, 60).take(rows)
    more = rows_of([1], [1], 1).append_column("s", pa.array(["x"]))
    made = work_of(["n", "s"], pa.schema([("n", pa.int64()), ("s", pa.string())]), handle, clock, 60, 60).take(more)
    assert made["history"].to_pylist() == [[{"n": 0, "s": None}]]
    other = rows_of([1], [2], 2).set_column(0, "n", pa.array([[1]]))
    with pytest.raises(ProjectError) as caught:
        work_of(["n"], pa.schema([("n", pa.list_(pa.int64()))]), handle, clock, 60, 60).take(other)
    assert caught.value.code == "history-columns"


def step(**options: Any) -> History:
    return History(**{"key": ["who"], **options})


GIVEN = pa.schema([("who", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("until", pa.string())])


def test_columns() -> None:
    made = step(columns=["n", "at"]).output(GIVEN)
    assert made.names == [*GIVEN.names, "history"]
    assert str(made.field("history").type) == "list<item: struct<n: int64, at: timestamp[us, tz=UTC]>>"
    assert step(mode="write").output(GIVEN) == GIVEN
    assert step(columns=["n"], since="at", until="at").uses(frozenset({"history"})) == {"who", "n", "at"}
    assert step().uses(frozenset({"history"})) is None
    unknown = pa.schema([("who", pa.null()), ("n", pa.null())])
    assert pa.types.is_null(step().output(unknown).field("history").type)


@pytest.mark.parametrize(
    ("options", "code"),
    [({"columns": ["m"]}, "unknown-column"), ({"key": ["whom"]}, "unknown-column"),
     ({"since": "at", "until": "until"}, "step-type")],
)  # fmt: skip
def test_mistakes(options: dict[str, Any], code: str) -> None:
    with pytest.raises(ProjectError) as caught:
        step(**options).output(GIVEN)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "options",
    [{"since": "at"}, {"since": "at", "until": "at", "last": "1h"}, {"last": "2d", "keep": "1d"}, {"mode": "read"},
     {"table": {"lake": "x"}, "time": "at"}],
)  # fmt: skip
def test_options_that_do_not_go_together(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        step(**options)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "headrace.yaml").write_text(PROJECT)
    return tmp_path


def test_how_it_is_read_may_change_but_not_what_it_keeps(project: Path) -> None:
    def shape(old: str = "", new: str = "") -> Any:
        (project / "headrace.yaml").write_text(PROJECT.replace(old, new) if old else PROJECT)
        return shape_of(make_plan(load(project)).flow("looked"))

    before = shape()
    assert compare(before, shape("last: 1h", "last: 2h"), {}, {}).kind == "safe"
    assert compare(before, shape("keep: 1d", "keep: 2d"), {}, {}).kind == "new_generation"
    assert compare(before, shape("key: [who]", "key: [id]"), {}, {}).kind == "new_generation"
    assert make_plan(load(project)).flow("looked").state == ("history",)


def test_the_past_in_another_flows_table(tmp_path: Path) -> None:
    around = Around(tmp_path)
    log = {"who": ["a", "b", "a", "a"], "n": [1, 2, 3, 4], "at": [START + timedelta(hours=n) for n in (1, 2, 3, 30)]}
    write_deltalake(str(tmp_path / "log"), pa.table(log))
    reading = step(mode="read", table={"lake": "log"}, time="at", columns=["n"], last="1d", limit=5).bound(around)
    assert reading.state_name is None
    assert str(reading.output(GIVEN).field("history").type) == "list<item: struct<n: int64>>"
    from headrace.processors._lookup.tables import PinnedVersions
    from headrace.processors.history.read import EventTable, ReadWork
    from headrace.processors.history.work import LookBack

    assert reading._place is not None
    table = EventTable(reading._place, pa.schema([("who", pa.string())]), "at", pa.schema([("n", pa.int64())]))
    hour = 3_600_000_000
    work = ReadWork(table, "history", LookBack(24 * hour, limit=5), "at", around.at().clock, PinnedVersions(None, ""))
    times = [START + timedelta(hours=n) for n in (4, 2, 100, 26)]
    rows = pa.RecordBatch.from_pydict({"who": ["a", "b", "a", None], "at": pa.array(times, pa.timestamp("us", "UTC"))})
    made = next(iter(work(iter([rows]))))
    assert [[event["n"] for event in one] for one in made["history"].to_pylist()] == [[3, 1], [2], [], []]


def order(number: int, who: str | None, minute: int) -> dict[str, Any]:
    return {"id": number, "who": who, "amount": number * 10, "at": START + timedelta(minutes=minute)}


@pytest.mark.spark
def test_each_row_gets_the_past_of_its_key_also_after_a_restart(project: Path, spark: Any) -> None:
    with ProjectHarness(project, spark) as harness:
        harness.feed("orders", [order(1, "a", 0), order(2, "b", 1), order(4, "a", 50), order(3, "a", 10)])
        harness.run("looked")
        harness.restart()
        harness.feed("orders", [order(5, "a", 65), order(6, "b", 200), order(7, None, 65), order(8, "a", 20)])
        harness.run("looked")
        # a day and more later: what is older is forgotten
        harness.feed("orders", [order(9, "a", 2000), order(10, "a", 2001)])
        harness.run("looked")
        harness.feed("orders", [order(11, "a", 2002)])
        harness.run("looked")
        seen = {row["id"]: [event["id"] for event in row["history"]] for row in harness.rows("looked")}
        assert seen == {
            1: [], 2: [], 3: [1], 4: [3, 1], 5: [4, 8, 3], 6: [], 7: [], 8: [3, 1], 9: [], 10: [9], 11: [10, 9],
        }  # fmt: skip
        amounts = {row["id"]: row["history"] for row in harness.rows("looked")}
        assert amounts[4] == [{"id": 3, "amount": 30}, {"id": 1, "amount": 10}]
