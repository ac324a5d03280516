"""Single flows that people stop and start again while the others go on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.engine.supervise.test_runner import PROJECT, Engine, FakeStarter, engine, project, short_pauses, status_of

from headrace.engine.flows.flow import FlowStarter
from headrace.engine.state.orders import Orders, give_order, last_order
from headrace.engine.state.state import StateDir
from headrace.engine.supervise.runner import Runner
from headrace.plan.planner import make_plan
from headrace.project.loader import Project, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["engine", "project", "short_pauses"]


def test_an_order_is_news_once_and_a_folder_that_is_away_has_none(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    orders = Orders(state)
    assert orders.news(["a", "b"]) == {}
    given = give_order(state, "a", "stopped")
    assert orders.news(["a", "b"]) == {"a": given}
    assert orders.news(["a", "b"]) == {}
    assert last_order(state, "a") == given
    state.root.rename(tmp_path / "away")
    assert orders.news(["a", "b"]) == {}
    (tmp_path / "away").rename(state.root)
    assert orders.news(["a", "b"]) == {}, "the same order as before"
    (state.root / "orders" / "b.json").write_text("{")
    assert orders.news(["a", "b"]) == {}


def test_one_flow_is_stopped_and_started_again_and_the_other_is_untouched(engine: Engine, project: Project) -> None:
    engine.until_state("first", "running")
    engine.until_state("second", "running")
    query = engine.query("first")
    order = give_order(engine.starter.state, "first", "stopped")
    engine.until_state("first", "stopped")
    assert not query.isActive
    assert engine.run("first").stop_order == order
    document = status_of(engine, project).document()
    assert document["ready"], "it is stopped because somebody wants it so"
    assert document["flow_list"][0]["stop"] == {"by": order.by, "at": order.at}
    assert len(engine.starter.queries["second"]) == 1
    give_order(engine.starter.state, "first", "running")
    engine.until_state("first", "running")
    assert len(engine.starter.queries["first"]) == 2
    assert engine.run("first").stop_order is None
    assert engine.run("first").restarts == 0, "that was no failure"
    assert engine.query("second").isActive


def test_an_engine_all_of_whose_flows_are_stopped_goes_on(engine: Engine) -> None:
    for flow in ("first", "second"):
        engine.until_state(flow, "running")
        give_order(engine.starter.state, flow, "stopped")
        engine.until_state(flow, "stopped")
    give_order(engine.starter.state, "second", "running")
    engine.until_state("second", "running")
    assert engine.run("first").state == "stopped"


def test_a_flow_that_has_failed_is_started_again_when_somebody_asks(engine: Engine) -> None:
    engine.until_state("first", "running")
    engine.query("first").fail("BadRecordError: record 5 of stream 's': malformed")
    engine.until_state("first", "failed")
    give_order(engine.starter.state, "first", "running")
    engine.until_state("first", "running")
    assert engine.run("first").error is None


def test_a_flow_that_waits_for_something_can_be_stopped(engine: Engine) -> None:
    engine.until_state("first", "running")
    engine.query("first").fail("org.apache.kafka.common.errors.TimeoutException: x")
    engine.until_state("first", "degraded")
    give_order(engine.starter.state, "first", "stopped")
    engine.until_state("first", "stopped")
    assert engine.run("first").pending_restart is None


def test_the_order_holds_for_the_next_engine(project: Project, short_pauses: None) -> None:
    give_order(StateDir(Path(project.context.state)), "first", "stopped")
    one = Engine(project)
    one.until_state("first", "stopped")
    one.until_state("second", "running")
    assert "first" not in one.starter.queries, "it was never started"
    one.runner.stopping.set()
    one.thread.join(10)


def test_until_caught_up_a_stopped_flow_is_left_out(project: Project, short_pauses: None) -> None:
    state = StateDir(Path(project.context.state))
    give_order(state, "first", "stopped")
    starter = FakeStarter(project, state)
    starter.until_caught_up = True
    (run,) = Runner(starter, make_plan(project, ["first"])).run(seconds=30)  # type: ignore[arg-type]
    assert (run.state, run.error, starter.queries) == ("stopped", None, {})


def test_a_change_of_mind_while_it_stops(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.until_state("first", "running")
    stops = threading.Event()
    told = threading.Event()

    def slow(run: Any, starter: Any, deadline: float) -> None:
        told.set()
        stops.wait(10)
        run.query.stop()

    monkeypatch.setattr("headrace.engine.supervise.runner.stop_flow", slow)
    give_order(engine.starter.state, "first", "stopped")
    assert told.wait(10)
    give_order(engine.starter.state, "first", "running")
    engine.until(lambda: engine.run("first").new_plan is not None)
    stops.set()
    engine.until(lambda: len(engine.starter.queries["first"]) == 2)
    engine.until_state("first", "running")
    assert engine.run("first").restarts == 0


@pytest.mark.spark
def test_a_real_flow_is_stopped_after_a_batch_and_goes_on_from_there(spark: SparkSession, tmp_path: Path) -> None:
    text = PROJECT.replace("STATE", str(tmp_path / "state"))
    (tmp_path / "headrace.yaml").write_text(text + "defaults: {trigger: 50ms}\n")
    loaded = load(tmp_path)
    state = StateDir(Path(loaded.context.state))
    one = Engine.__new__(Engine)
    one.runner = Runner(FlowStarter(loaded, state, spark), make_plan(loaded, ["first"]))
    thread = threading.Thread(target=one.runner.run)
    thread.start()
    try:
        one.until(lambda: one.run("first").batches > 1, 300)
        give_order(state, "first", "stopped")
        one.until(lambda: one.run("first").state == "stopped", 300)
        checkpoint = state.current("first").checkpoint
        assert not checkpoint.in_flight()
        committed, counted = checkpoint.committed(), one.run("first").batches
        assert committed is not None
        give_order(state, "first", "running")
        one.until(lambda: one.run("first").batches > counted, 300)
    finally:
        one.runner.stopping.set()
        thread.join(120)
    later = checkpoint.committed()
    assert later is not None
    assert later.batch_id > committed.batch_id
    assert one.run("first").batches <= later.batch_id + 1, "no batch was counted twice"
