"""The supervisor: what becomes of a flow that fails, and of the others meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.core.errors import Exit, ProjectError
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.observe.probes import ClosedLetterCounter, FileCounter, LagMeter
from headrace.engine.observe.status import EngineStatus
from headrace.engine.state.state import StateDir
from headrace.engine.supervise import runner as supervisor
from headrace.engine.supervise import stopping
from headrace.engine.supervise.health import Health, check_writable
from headrace.engine.supervise.runner import FlowRun, Runner
from headrace.plan.planner import make_plan
from headrace.project.loader import Project, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROJECT = """
project: two
streams:
  made: {source: {type: generate, rate: 500, fields: {id: {sequence: "{}"}, at: {time: event}}}, event_time: at}
flows:
  first: {sql: SELECT id FROM made, sinks: [noop]}
  second: {sql: SELECT id FROM made, sinks: [noop], required: false}
restart: {budget: 2, within: 1min, backoff: 20ms, max_backoff: 100ms}
state: STATE
"""
UNAVAILABLE = ProjectError("broker-unreachable", "no broker", exit_code=Exit.TRANSIENT)


class FakeQuery:
    """A query that does as it is told."""

    def __init__(self, failure: str | None = None, batches: int = 1) -> None:
        self.failure, self.batches = failure, batches
        self.isActive = True
        self.busy = False
        self._jsq = self

    @property
    def status(self) -> dict[str, Any]:
        message = "Processing new data" if self.busy else "Waiting for data to arrive"
        return {"message": message, "isTriggerActive": self.busy, "isDataAvailable": self.busy}

    def exception(self) -> str | None:
        return self.failure

    def stop(self) -> None:
        self.isActive = False

    def fail(self, text: str) -> None:
        self.failure, self.isActive = text, False

    def recentProgress(self) -> list[Any]:  # noqa: N802  # as Spark calls it
        return [FakeReport(number) for number in range(self.batches)]

    def lastProgress(self) -> Any:  # noqa: N802
        return FakeReport(self.batches - 1) if self.batches else None


class FakeReport:
    """What Spark says about a batch."""

    def __init__(self, number: int) -> None:
        self.number = number

    def batchId(self) -> int:  # noqa: N802
        return self.number

    def json(self) -> str:
        import json

        sources = [{"description": "s", "startOffset": None, "endOffset": None, "latestOffset": None,
                    "numInputRows": 10, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0}]  # fmt: skip
        ident = "00000000-0000-0000-0000-000000000000"
        return json.dumps(
            {"id": ident, "runId": ident, "name": "q", "timestamp": "2026-01-01T00:00:00.000Z",
             "batchId": self.number, "batchDuration": 5, "numInputRows": 10, "inputRowsPerSecond": 1.0,
             "processedRowsPerSecond": 1.0, "durationMs": {"triggerExecution": 5, "addBatch": 3}, "eventTime": {},
             "stateOperators": [], "sources": sources, "sink": {"description": "f", "numOutputRows": -1}}
        )  # fmt: skip


class FakeStarter:
    """Starts queries that do as they are told, and remembers them."""

    def __init__(self, project: Project, state: StateDir) -> None:
        self.project, self.state = project, state
        self.until_caught_up = False
        self.queries: dict[str, list[FakeQuery]] = {}
        self.refuse: dict[str, ProjectError] = {}

    def start(self, flow: Any) -> FakeQuery:
        if flow.name in self.refuse:
            raise self.refuse[flow.name]
        generation = self.state.current(flow.name)
        generation.checkpoint_folder.mkdir(parents=True, exist_ok=True)
        self.queries.setdefault(flow.name, []).append(FakeQuery())
        return self.queries[flow.name][-1]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "headrace.yaml").write_text(PROJECT.replace("STATE", str(tmp_path / "state")))
    return load(tmp_path)


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(supervisor, "_LONGEST_POLL", 0.01)
    monkeypatch.setattr(supervisor, "_BUSY_SECONDS", 0.05)
    monkeypatch.setattr(supervisor, "_RECHECK_SECONDS", 0.02)


class Engine:
    """A runner in a thread, with what its health says in the test's hands."""

    def __init__(
        self, project: Project, observers: list[Any] | None = None, refuse: dict[str, ProjectError] | None = None
    ) -> None:
        state = StateDir(Path(project.context.state))
        state.root.mkdir(parents=True, exist_ok=True)
        self.starter = FakeStarter(project, state)
        self.starter.refuse = refuse or {}
        plan = make_plan(project, [])
        self.runner = Runner(self.starter, plan, observers=observers or [], stop_seconds=1.0)  # type: ignore[arg-type]
        self.problem: ProjectError | None = None
        self.runner.health.problem = lambda flow, generation: self.problem  # type: ignore[method-assign]
        self.thread = threading.Thread(target=self.runner.run)
        self.thread.start()

    def run(self, flow: str) -> FlowRun:
        return next(run for run in self.runner.runs if run.plan.name == flow)

    def query(self, flow: str) -> FakeQuery:
        return self.starter.queries[flow][-1]

    def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, [(run.plan.name, run.state, run.reason) for run in self.runner.runs]
            time.sleep(0.005)

    def until_state(self, flow: str, state: str) -> None:
        self.until(lambda: self.run(flow).state == state)


@pytest.fixture
def engine(project: Project, short_pauses: None) -> Iterator[Engine]:
    one = Engine(project)
    yield one
    one.runner.stopping.set()
    one.thread.join(60)
    assert not one.thread.is_alive()


def status_of(engine: Engine, project: Project) -> EngineStatus:
    notes, state = engine.runner.notes, engine.starter.state
    lags = LagMeter("two", project.context, state, engine.runner.runs, notes)
    letters, closed = FileCounter(state.dead_letters), ClosedLetterCounter(state.dead_letters)
    return EngineStatus("two", 1, engine.runner.runs, notes, lags, letters, closed, FileCounter(state.root))


def test_a_fault_of_the_project_is_final_and_touches_no_other_flow(engine: Engine) -> None:
    engine.until_state("first", "running")
    engine.until_state("second", "running")
    engine.query("first").fail("BadRecordError: record 5 of stream 's': malformed")
    engine.until_state("first", "failed")
    assert engine.run("first").error is not None
    assert engine.run("first").restarts == 0
    assert engine.run("second").state == "running"
    assert len(engine.starter.queries["second"]) == 1


def test_what_is_away_is_waited_for_as_long_as_it_lasts(engine: Engine, project: Project) -> None:
    engine.until_state("first", "running")
    engine.problem = UNAVAILABLE
    engine.query("first").fail("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node")
    engine.until_state("first", "degraded")
    began = engine.run("first").reason
    time.sleep(0.5)  # many times the longest backoff and the whole budget
    assert engine.run("first").state == "degraded"
    assert engine.run("first").reason is not None
    assert engine.run("first").reason.since == began.since  # type: ignore[union-attr]
    assert len(engine.starter.queries["first"]) == 1, "no restart while it is away"
    assert status_of(engine, project).not_ready()[0]["flow"] == "first"
    engine.problem = None
    engine.until_state("first", "running")
    assert engine.run("first").restarts == 1
    assert engine.run("first").reason is None
    assert status_of(engine, project).not_ready() == []


def test_a_failure_nobody_explains_is_forgiven_as_often_as_the_budget_says(engine: Engine) -> None:
    for restarts in range(3):
        engine.until(lambda restarts=restarts: len(engine.starter.queries.get("first", [])) == restarts + 1)  # type: ignore[misc]
        engine.until_state("first", "running")
        engine.query("first").fail("java.lang.IllegalStateException: nobody knows")
    engine.until_state("first", "failed")
    assert engine.run("first").restarts == 2
    assert engine.run("first").error.code == "flow-failed"  # type: ignore[union-attr]


def test_an_odd_failure_while_something_is_away_does_not_cost_the_budget(engine: Engine) -> None:
    engine.until_state("first", "running")
    for _ in range(4):
        engine.problem = UNAVAILABLE
        engine.query("first").fail("java.lang.IllegalStateException: nobody knows")
        engine.until(
            lambda: engine.run("first").reason is not None and engine.run("first").reason.code == UNAVAILABLE.code
        )  # type: ignore[union-attr]
        engine.problem = None
        engine.until_state("first", "running")
    assert engine.run("first").restarts == 4


def test_a_batch_that_hangs_is_looked_into_and_progress_makes_it_well(engine: Engine) -> None:
    engine.until_state("first", "running")
    engine.problem = UNAVAILABLE
    engine.query("first").busy = True
    engine.until_state("first", "degraded")
    assert engine.run("first").reason.code == "broker-unreachable"  # type: ignore[union-attr]
    engine.problem = None
    time.sleep(0.1)
    assert engine.run("first").state == "degraded", "its sources answer, but it has not got on yet"
    engine.query("first").batches += 1
    engine.until_state("first", "running")
    assert len(engine.starter.queries["first"]) == 1


def test_a_slow_batch_of_a_healthy_flow_is_not_degraded(engine: Engine) -> None:
    engine.until_state("first", "running")
    engine.query("first").busy = True
    time.sleep(0.3)
    assert engine.run("first").state == "running"


def test_a_flow_that_ends_without_a_word_is_started_again(engine: Engine) -> None:
    engine.until_state("first", "running")
    engine.query("first").isActive = False
    engine.until(lambda: engine.run("first").restarts == 1)
    engine.until_state("first", "running")


def test_a_start_that_is_refused_is_final(project: Project, short_pauses: None) -> None:
    one = Engine(project, refuse={"second": ProjectError("sql-invalid", "no")})
    one.until_state("first", "running")
    one.until_state("second", "failed")
    assert status_of(one, project).not_ready() == [], "second is not required"
    one.runner.stopping.set()
    one.thread.join(60)


def test_it_ends_by_itself_when_its_time_is_over(project: Project, short_pauses: None) -> None:
    runner = Runner(FakeStarter(project, StateDir(Path(project.context.state))), make_plan(project, ["first"]))  # type: ignore[arg-type]
    (run,) = runner.run(seconds=0.2)
    assert (run.state, run.error) == ("stopped", None)
    assert not runner.stopping.is_set()


def test_until_caught_up_every_failure_is_final(project: Project, short_pauses: None) -> None:
    state = StateDir(Path(project.context.state))
    starter = FakeStarter(project, state)
    starter.until_caught_up = True
    starter.refuse["first"] = UNAVAILABLE
    runner = Runner(starter, make_plan(project, ["first"]))  # type: ignore[arg-type]
    (run,) = runner.run(seconds=60)
    assert (run.state, run.error) == ("failed", UNAVAILABLE)


def test_until_caught_up_a_lost_executor_costs_the_budget(project: Project, short_pauses: None) -> None:
    starter = FakeStarter(project, StateDir(Path(project.context.state)))
    starter.until_caught_up = True
    starter.refuse["first"] = ProjectError("executor-lost", "Python worker failed to connect back.")
    runner = Runner(starter, make_plan(project, ["first"]))  # type: ignore[arg-type]
    runner.health.problem = lambda flow, generation: UNAVAILABLE  # type: ignore[method-assign]
    (run,) = runner.run(seconds=60)
    assert (run.state, run.restarts) == ("failed", 2), "nor is anything waited for"


class SlowObserver:
    """An observer that takes its time and then fails."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.closed = False
        self.go_on = threading.Event()

    def batch_done(self, flow: Any, progress: Any) -> None:
        self.go_on.wait(120)
        self.told.append((flow.name, progress["batchId"]))
        raise RuntimeError("no")

    def close(self) -> None:
        self.closed = True


def test_an_observer_is_told_of_each_batch_once_and_is_in_nobodys_way(project: Project, short_pauses: None) -> None:
    slow = SlowObserver()
    one = Engine(project, [slow])
    one.until_state("first", "running")
    for batches in (5, 20, 40):
        one.query("first").batches = batches
        one.until(lambda batches=batches: one.run("first").batches == batches)  # type: ignore[misc]
    slow.go_on.set()
    one.runner.stopping.set()
    one.thread.join(60)
    assert [number for flow, number in slow.told if flow == "first"] == list(range(40))
    assert slow.closed
    assert one.run("first").rows_in == 400
    (note,) = one.runner.notes.all()
    assert (note["about"], note["count"]) == ("SlowObserver", 41)


def test_a_state_folder_that_was_taken_away_is_not_begun_anew(project: Project, short_pauses: None) -> None:
    one = Engine(project)
    one.runner.health.problem = Health.problem.__get__(one.runner.health)  # type: ignore[method-assign]
    one.until_state("first", "running")
    root = one.starter.state.root
    root.rename(root.with_name("away"))
    one.until_state("first", "degraded")
    assert one.run("first").reason.code == "state-missing"  # type: ignore[union-attr]
    assert not one.query("first").isActive, "it must not write where it should not"
    root.mkdir()  # an empty folder of the same name, as below a mount that is gone
    time.sleep(0.3)
    assert one.run("first").state == "degraded"
    assert list(root.iterdir()) == []
    root.rmdir()
    root.with_name("away").rename(root)
    one.until_state("first", "running")
    one.runner.stopping.set()
    one.thread.join(60)
    assert one.run("first").state == "stopped"


def test_a_folder_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    assert check_writable(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    found = check_writable(tmp_path / "none")
    assert found is not None
    assert found.code == "state-unwritable"


@pytest.mark.spark
def test_a_busy_flow_is_stopped_between_two_batches(spark: SparkSession, tmp_path: Path) -> None:
    """Batches without a pause between them: there is never a moment at which Spark says that it waits."""
    text = PROJECT.replace("STATE", str(tmp_path / "state")).replace("rate: 500", "rate: 5000")
    (tmp_path / "headrace.yaml").write_text(text + "defaults: {trigger: 1ms}\n")
    project = load(tmp_path)
    state = StateDir(Path(project.context.state))
    for round_ in range(2):
        starter = FlowStarter(project, state, spark)
        runner = Runner(starter, make_plan(project, ["first"]))
        thread = threading.Thread(target=runner.run)
        thread.start()
        deadline = time.monotonic() + 600
        while runner.runs[0].batches < 2 + round_ and time.monotonic() < deadline:
            time.sleep(0.02)
        runner.stopping.set()
        thread.join(300)
        assert not thread.is_alive()
        assert runner.runs[0].state == "stopped"
        assert not state.current("first").checkpoint.in_flight()


@pytest.mark.spark
def test_a_batch_that_was_cut_off_is_finished(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment between two batches may be missed; then the batch that was cut off is run alone."""
    (tmp_path / "headrace.yaml").write_text(PROJECT.replace("STATE", str(tmp_path / "state")))
    project = load(tmp_path)
    state = StateDir(Path(project.context.state))
    starter = FlowStarter(project, state, spark)
    run = FlowRun(make_plan(project, ["first"]).flows[0])
    run.query = starter.start(run.plan)
    checkpoint = state.current("first").checkpoint
    deadline = time.monotonic() + 600
    while not checkpoint.in_flight() and time.monotonic() < deadline:
        time.sleep(0.001)
    planned = checkpoint.planned()
    assert planned is not None
    answers = iter([False])
    real = stopping._in_flight
    monkeypatch.setattr(stopping, "_in_flight", lambda *given: next(answers, None) is None and real(*given))
    stopping.stop_flow(run, starter, time.monotonic() + 600)
    assert not checkpoint.in_flight()
    assert checkpoint.planned() == planned, "that batch, and no other"


@pytest.mark.spark
def test_numbers_of_a_real_flow(spark: SparkSession, tmp_path: Path) -> None:
    text = PROJECT.replace("STATE", str(tmp_path / "state")).replace(
        "SELECT id FROM made, sinks: [noop]}",
        "\"SELECT window.start AS s, count(*) AS n FROM made GROUP BY window(at, '1 second')\", sinks: [noop]}",
        1,
    )
    # windows that close after one second, not after the usual ten
    text = text.replace("event_time: at}", "event_time: {column: at, watermark: 1s}}")
    (tmp_path / "headrace.yaml").write_text(text)
    project = load(tmp_path)
    state = StateDir(Path(project.context.state))
    runner = Runner(FlowStarter(project, state, spark), make_plan(project, ["first"]))
    thread = threading.Thread(target=runner.run)
    thread.start()
    run = runner.runs[0]
    deadline = time.monotonic() + 600
    while (run.counters.rows_out or 0) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    runner.stopping.set()
    thread.join(300)
    numbers = run.counters
    assert numbers.rows_in > 0
    assert (numbers.rows_out or 0) >= 2
    assert numbers.state_rows is not None
    assert numbers.watermark is not None
    assert numbers.streams["made"].watermark is not None
    assert numbers.last_batch is not None
    assert numbers.last_batch["phases_s"]["addBatch"] > 0
    assert numbers.latency_s is not None
    assert numbers.last_batch["duration_s"] > 0
