from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
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
from headrace.plan.checkpoint_shape import shape_of
from headrace.plan.compare import compare
from headrace.plan.planner import make_plan
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


@pytest.mark.spark
def test_a_batch_run_takes_all_and_finishes_every_session(project: Path, spark: Any) -> None:
    with ProjectHarness(changed(project, "    sinks:", "    mode: batch\n    sinks:"), spark) as harness:
        harness.feed("clicks", [click("a", "2", 5), click("b", "x", 3), click("a", "4", 90)])
        harness.feed("clicks", [click("a", "1", 0), click("a", "3", 20), click(None, "?", 1)])
        harness.run("visits")
        assert sorted(told(harness.rows("visits"))) == [("a", "1", "2", "3"), ("a", "4"), ("b", "x")]
        harness.feed("clicks", [click("b", "y", 4)])
        harness.run("visits")
        assert told(harness.rows("visits"))[3:] == [("b", "y")]
        assert [one["reason"] for one in harness.dead_letters("visits")] == ["no-session-key"]


def step(**more: Any) -> Sessions:
    said = {"key": ["who"], "time": "at", "class": "processors/visit.py:Visit", "gap": "30s", "wait": "10s"}
    return Sessions.model_validate({**said, **more})


SCHEMA = pa.schema([("who", pa.string()), ("page", pa.string()), ("at", pa.timestamp("us", "UTC"))])


def worker(project: Path, handle: MemoryHandle | None, clock: StepClockAt, **more: Any) -> Any:
    from headrace.processors.sessions.run import Rules, SessionRun
    from headrace.processors.sessions.work import BatchSessions, SessionWork

    made = step(**more).bound(Around(project))
    keep = 0 if made.keep is None else made.keep // timedelta(microseconds=1)
    rules = Rules(30 * SECOND, keep, made.limit, ("page",))
    run = SessionRun(made._found(), {}, rules, made.output(SCHEMA))
    letters = Around(project).at().letters
    if handle is None:
        return BatchSessions(run, ("who", "page"), "at", clock, letters)
    work = SessionWork(run, ("who", "page"), "at", clock, letters)
    work.open(handle)  # type: ignore[arg-type]
    return work


def table(clicks: list[tuple[int, str, int]]) -> pa.Table:
    from headrace.processors._keyed.state import HIGH, KEYLESS, LOW
    from headrace.processors.sessions.work import TIME

    times = pa.array([one[2] * SECOND for one in clicks], pa.int64()).cast(SCHEMA.field("at").type)
    keys = pa.array([one[0] for one in clicks], pa.int64())
    return pa.table(
        {"who": pa.array([str(one[0]) for one in clicks], pa.string()), "page": pa.array([one[1] for one in clicks]),
         "at": times, TIME: times, HIGH: keys, LOW: keys, KEYLESS: pa.array([False] * len(clicks), pa.bool_())},
        schema=pa.schema([*SCHEMA, (TIME, times.type), (HIGH, pa.int64()), (LOW, pa.int64()), (KEYLESS, pa.bool_())]),
    )  # fmt: skip


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("visits")
    (folder / "processors").mkdir()
    (folder / "processors/visit.py").write_text(VISIT)
    return folder


CLICKS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["p", "q", "out"]), st.integers(100, 300), st.integers(0, 10)),
    max_size=30,
)


@settings(max_examples=30, deadline=None)
@given(clicks=CLICKS, cuts=st.lists(st.integers(0, 30), max_size=6), keep=st.sampled_from([None, "20s"]))
def test_neither_batches_nor_the_order_of_arrival_change_what_comes_out(
    visits: Path, clicks: Any, cuts: list[int], keep: str | None
) -> None:
    project = visits
    arrived = [one[:3] for one in sorted(clicks, key=lambda one: one[2] + one[3])]
    at_once = worker(project, None, StepClockAt(), keep=keep)(table(arrived)).to_pylist()

    clock, handle, given_out = StepClockAt(), MemoryHandle(), []
    newest, watermark = 0, 0
    bounds = sorted({0, len(arrived), *(cut for cut in cuts if cut < len(arrived))})
    for start, end in [*pairwise(bounds), (0, 0)]:
        batch = arrived[start:end]
        clock.now, watermark = watermark, max(newest - 10, 0) * SECOND if batch else 10**12
        given_out += worker(project, handle, clock, keep=keep).take(table(batch), watermark).to_pylist()
        newest = max([newest, *(one[2] for one in batch)])

    def by_key(rows: list[dict[str, Any]]) -> dict[str, Any]:
        return {key: [row for row in rows if row["who"] == key] for key in "012"}

    assert by_key(given_out) == by_key(at_once)
    assert handle.held["sessions"].values == {}
    assert handle.held["agenda"].values == {}
    assert Around(project).letters() == []


def test_a_key_is_called_again_when_something_is_due(project: Path) -> None:
    clock, handle = StepClockAt(), MemoryHandle()
    work = worker(project, handle, clock)
    assert work.take(table([(1, "p", 100)]), 0).num_rows == 0
    # the row waits: it is due with its time, and then the session with its gap
    assert work.due() == 101 * SECOND
    assert work.take(table([]), 101 * SECOND).num_rows == 0
    assert work.due() == 131 * SECOND
    assert work.take(table([]), 131 * SECOND).to_pylist() == [{"who": "1", "seen": ["p"], "n": 1}]
    assert work.due() is None


def test_a_session_has_at_most_so_many_rows_and_so_many_wait(project: Path) -> None:
    work = worker(project, None, StepClockAt(), limit=3)
    rows = work(table([(1, str(place), 100 + place) for place in range(7)])).to_pylist()
    assert [len(row["seen"]) for row in rows] == [3, 3, 1]
    waiting = worker(project, MemoryHandle(), StepClockAt(), limit=3)
    waiting.take(table([(1, str(place), 100 + place) for place in range(5)]), 0)
    letters = Around(project).letters()
    assert [one["reason"] for one in letters] == ["session-limit"] * 2
    assert [json.loads(one["value"])["page"] for one in letters] == ["3", "4"]


def test_what_goes_on_after_an_end_is_the_same_object_for_as_long_as_it_is_kept(project: Path) -> None:
    rows = worker(project, None, StepClockAt(), keep="60s")(table([(1, "p", 100), (1, "q", 180), (1, "r", 290)]))
    assert [row["n"] for row in rows.to_pylist()] == [1, 2, 1]


def refused(project: Path) -> list[str]:
    with pytest.raises(ProjectErrors) as caught:
        make_plan(load(project))
    return [error.code for error in caught.value.errors]


def test_a_flow_has_one_watermark(project: Path) -> None:
    changed(project, 'at timestamp"}', 'at timestamp"}\n    event_time: at')
    assert "step-needs-own-flow" in refused(project)


def test_sql_with_state_and_a_second_such_step_are_refused(project: Path) -> None:
    changed(project, "SELECT who, seen, n FROM clicks", "SELECT who, count(*) AS n FROM clicks GROUP BY who")
    assert "step-needs-own-flow" in refused(project)
    changed(project, "SELECT who, count(*) AS n FROM clicks GROUP BY who", "SELECT who, now() AS at FROM clicks")
    again = "    after: [{type: sessions, key: [who], time: at, class: 'processors/visit.py:Visit', gap: 1m}]\n"
    changed(project, "    sinks:", again + "    sinks:")
    assert refused(project) == ["step-needs-own-flow"] * 2


def test_a_batch_run_has_all_rows_at_once(project: Path) -> None:
    changed(project, "    sinks:", "    mode: batch\n    max_records: 5\n    sinks:")
    assert refused(project) == ["step-needs-own-flow"]


def test_columns_and_class_are_checked_when_planned(project: Path) -> None:
    around = Around(project)
    with pytest.raises(ProjectError, match="'sessions' takes 'page' for a time"):
        step(time="page").bound(around).output(SCHEMA)
    with pytest.raises(ProjectError, match="uses column 'wo'"):
        step(key=["wo"]).bound(around).output(SCHEMA)
    with pytest.raises(ProjectError, match="uses column 'pag'") as caught:
        step(uses=["pag"]).bound(around).output(SCHEMA)
    assert "page" in (caught.value.hint or "")
    with pytest.raises(ProjectError, match="the class does not receive"):
        step(uses=["page"], order=["who"]).bound(around).output(SCHEMA)
    (project / "processors/visit.py").write_text(VISIT.replace("def finish(self)", "def ended(self)"))
    with pytest.raises(ProjectError, match="has no method 'finish'"):
        step().bound(around)
    (project / "processors/visit.py").write_text(VISIT.replace("columns =", "other ="))
    with pytest.raises(ProjectError, match="does not declare its output columns"):
        step().bound(around)
    assert step(columns="n int").bound(around).output(SCHEMA) == from_ddl("n int")


def test_what_a_class_gives_is_checked(project: Path) -> None:
    (project / "processors/visit.py").write_text(VISIT.replace('"n": self.finishes', '"m": 1'))
    with pytest.raises(ProjectError, match="instead of the columns") as caught:
        worker(project, None, StepClockAt())(table([(1, "p", 1)]))
    assert caught.value.code == "python-step-columns"
    (project / "processors/visit.py").write_text(VISIT.replace("self.finishes += 1", "self.finishes += 'x'"))
    with pytest.raises(ProjectError, match="TypeError") as caught:
        worker(project, None, StepClockAt())(table([(1, "p", 1)]))
    assert caught.value.code == "python-step-failed"


@pytest.mark.parametrize("said", [{"gap": "0s"}, {"wait": "0s"}, {"limit": 0}, {"columns": "n what"}, {"key": []}])
def test_options_that_mean_nothing_are_refused(said: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        step(**said)


def test_another_key_needs_a_new_generation_and_another_gap_does_not(project: Path) -> None:
    def shape() -> dict[str, Any]:
        return shape_of(make_plan(load(project)).flows[0])

    before = shape()
    changed(project, "gap: 30s", "gap: 50s")
    assert compare(before, shape(), {}, {}).kind == "safe"
    changed(project, "key: [who]", "key: [who, page]")
    assert compare(before, shape(), {}, {}).kind == "new_generation"
    changed(project, "key: [who, page]", "key: [who]")
    changed(project, "    sinks:", "    mode: batch\n    sinks:")
    assert compare(before, shape(), {}, {}).kind == "new_generation"
