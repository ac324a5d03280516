"""Generations built beside the running one, on what is on disk: pointers, definitions, refusals. No Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake
from tests.engine.state.test_checkpoints import write_batch
from tests.errors import code_of

from headrace.core.capabilities import BuildsCandidate, Candidate, Rewind, candidate_effect
from headrace.core.context import Context
from headrace.core.kinds import kinds
from headrace.core.sink import Sink
from headrace.engine.flows.flow import FlowStarter, with_candidate_sinks
from headrace.engine.observe.housekeeping import remove_old_generations
from headrace.engine.positions.rewind import while_stopped
from headrace.engine.positions.upgrade import detect_change, resolve_generation
from headrace.engine.state.checkpoints import Checkpoint
from headrace.engine.state.generations import Generation
from headrace.engine.state.state import StateDir
from headrace.engine.supervise import candidate, candidate_alignment, candidate_switch
from headrace.engine.supervise.background import Notes
from headrace.plan.model import FlowPlan
from headrace.plan.planner import make_plan
from headrace.project.loader import Project, load, load_stored_definition
from headrace.sinks.lake import LakeSink
from headrace.sinks.lake.undo import plan_undo
from headrace.sources.kafka import KafkaSource

PROJECT = """
project: shop
variables: {{least: 3}}
streams:
  orders:
    source: {{type: kafka, brokers: "127.0.0.1:9", topic: orders}}
    format: {{type: json, columns: "k string, n bigint, ts timestamp"}}
    event_time: {{column: ts, watermark: 10s}}
flows:
  sums:
    sql_file: sums.sql
    {keys}
    sinks:
      - {{type: lake, path: lake/sums}}
      - {{type: kafka, brokers: "127.0.0.1:9", topic: sums, delivery: exactly_once}}
"""
OLD = "SELECT window.start AS at, k, count(*) AS n FROM orders WHERE k <> '$' GROUP BY window(ts, '10 seconds'), k"
NEW = OLD.replace("count(*)", "sum(n)")


class Shop:
    """A project with one flow that has done a batch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = StateDir(folder / ".headrace")
        self.write(OLD)
        self.first = resolve_generation(self.project, self.state, self.flow)
        write_batch(self.first.checkpoint_folder, 0, {"orders": {"0": 5, "1": 7}})

    def write(self, sql: str, keys: str = "", project: str = PROJECT) -> None:
        (self.folder / "sums.sql").write_text(sql)
        (self.folder / "headrace.yaml").write_text(project.format(keys=keys))

    @property
    def project(self) -> Project:
        return load(self.folder)

    @property
    def flow(self) -> FlowPlan:
        return make_plan(self.project).flow("sums")

    def start_candidate(self) -> Generation:
        return candidate.start_candidate(self.project, self.state, detect_change(self.project, self.state, self.flow))

    def effects(self) -> list[tuple[str, str]]:
        return candidate.candidate_effects(self.project, self.state, detect_change(self.project, self.state, self.flow))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_a_definition_can_be_run_after_all_files_have_changed(shop: Shop) -> None:
    shop.write(NEW)
    then = load_stored_definition(shop.project, shop.first.definition.read_text(), "then")
    assert then.sql_of("sums") == OLD
    assert then.context == shop.project.context
    assert candidate.running_definition(shop.project, shop.state, "sums").flow.sql != shop.flow.sql


def test_a_definition_holds_references_not_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "open-sesame")
    monkeypatch.setenv("LEAST", "7")
    (tmp_path / "headrace.yaml").write_text(
        """
project: shop
streams: {n: {source: {type: generate, fields: {n: {sequence: 1}}}}}
sinks: {there: {type: postgres, url: "postgresql://u:${secret:PASSWORD}@h/d", table: t}}
flows: {f: {sql: "SELECT n, '$$x' AS x FROM n WHERE n > ${LEAST}", sinks: [there]}}
profiles: {p: {state: elsewhere}}
"""
    )
    project = load(tmp_path, profile="p", overrides=["flows.f.trigger=3s"])
    text = project.definition() or ""
    assert "open-sesame" not in text
    file = tmp_path / "g1" / "definition.yaml"
    Generation(tmp_path / "g1").define(text)
    assert oct(file.stat().st_mode)[-3:] == "600"
    again = load_stored_definition(load(tmp_path), file.read_text(), "then")
    assert again.spec.flows["f"] == project.spec.flows["f"]
    assert again.spec.state == ".headrace", "where it runs is the business of the project that runs it"
    assert "open-sesame" in again.secrets.values
    assert again.definition() == text


def test_a_candidate_is_current_for_whoever_looks_from_it(shop: Shop) -> None:
    shop.write(NEW)
    made = shop.start_candidate()
    generations = shop.state.generations("sums")
    assert (generations.current(), generations.candidate()) == (shop.first, made)
    assert made.manifest.parent == shop.first.id
    assert shop.state.with_candidate("sums").current("sums") == made
    assert shop.state.with_candidate("other").current("sums") == shop.first
    assert made.definition.read_text() == shop.project.definition()
    generations.switch(made)
    assert generations.candidate() is None, "what is current is no candidate any more"


def test_a_candidate_is_kept_and_nothing_else_moves(shop: Shop) -> None:
    shop.write(NEW)
    made = shop.start_candidate()
    made.describe(replace(made.manifest, parent=None, created_at="2020-01-01T00:00:00+00:00"))
    assert remove_old_generations(shop.state.generations("sums"), timedelta(0)) == []

    def change() -> None:
        with while_stopped(shop.state, "sums"):
            pass

    assert code_of(change) == "candidate-exists"
    assert code_of(lambda: shop.state.require_no_candidate("sums")) == "candidate-exists"


def test_the_file_must_be_what_the_candidate_is_built_for(shop: Shop) -> None:
    assert candidate.candidate_change(shop.project, shop.state, shop.flow) is None
    shop.write(NEW)
    made = shop.start_candidate()
    change = candidate.candidate_change(shop.project, shop.state, shop.flow)
    assert change is not None
    assert (change.generation, change.running) == (made, shop.first.id)
    assert candidate.candidate_mismatch(shop.project, change) is None
    shop.write(OLD)
    for _begun in (False, True):
        change = candidate.candidate_change(shop.project, shop.state, shop.flow)
        assert change is not None
        error = candidate.candidate_mismatch(shop.project, change)
        assert error is not None
        assert error.code == "candidate-other"
        write_batch(made.checkpoint_folder, 0, {"orders": {"0": 1}})


def test_what_cannot_be_built_beside_is_refused(shop: Shop) -> None:
    shop.write(NEW)
    assert [effect[:24] for _sink, effect in shop.effects()] == ["lake/sums__NEW is filled", "existing rows stay; rows"]
    shop.write(NEW, keys="mode: batch")
    assert code_of(shop.effects) == "beside-unsupported"
    shop.write(NEW, project=PROJECT.replace("watermark: 10s", "watermark: 10s, idle: 1min"))
    assert code_of(shop.effects) == "beside-unsupported"
    files = PROJECT.replace('{{type: kafka, brokers: "127.0.0.1:9", topic: orders}}', "{{type: files, path: orders}}")
    shop.write(NEW, project=files)
    assert code_of(shop.effects) == "beside-unsupported"
    redis = '{{type: redis, url: "redis://127.0.0.1:9/0", key: "sums:{{k}}"}}'
    shop.write(NEW, project=PROJECT.replace("{{type: lake, path: lake/sums}}", redis))
    assert code_of(shop.effects) == "beside-unsupported"
    shop.first.definition.unlink()
    assert code_of(shop.effects) == "beside-no-definition"


def test_what_runs_must_be_able_to_go_on_as_it_was(shop: Shop) -> None:
    shop.write(NEW)
    shop.first.define(OLD.join(("project: [", "")))
    assert code_of(shop.effects) == "beside-definition-changed"
    text = (shop.project.definition() or "").replace("least", "most")
    shop.first.define(text)
    assert code_of(shop.effects) == "beside-definition-changed", "it is not what the checkpoint was made by"


SINKS: dict[str, tuple[dict[str, Any], str]] = {
    "archive": ({"path": "archive", "time": "at"}, "nothing"),
    "console": ({}, "nothing"),
    "endpoint": ({"name": "sums", "key": "k"}, "sums"),
    "files": ({"path": "out"}, "nothing"),
    "http": ({"url": "http://127.0.0.1:9/x"}, "nothing"),
    "influxdb": ({"url": "http://127.0.0.1:9", "database": "d", "measurement": "m"}, "nothing"),
    "kafka": ({"brokers": "127.0.0.1:9", "topic": "t"}, "nothing"),
    "lake": ({"path": "lake/x"}, "lake/x__g2-abc"),
    "noop": ({}, "nothing"),
    "opensearch": ({"url": "http://127.0.0.1:9", "index": "i"}, "refused"),
    "postgres": ({"url": "postgresql://127.0.0.1:9/d", "table": "s.t"}, "s.t__g2_abc"),
    "redis": ({"url": "redis://127.0.0.1:9/0", "key": "x:{k}"}, "refused"),
}


@pytest.mark.parametrize("name", sorted(SINKS))
def test_every_sink_says_where_a_candidate_writes(name: str, tmp_path: Path) -> None:
    options, expected = SINKS[name]
    sink = kinds("sinks")[name](**options)
    assert isinstance(sink, Sink)
    side = Candidate("f", "s", "g2-abc", Context(tmp_path, str(tmp_path)))
    if expected == "refused":
        assert code_of(lambda: candidate_effect(sink, side)) == "beside-unsupported"
        return
    target = sink.candidate_sink(side).target if isinstance(sink, BuildsCandidate) else "nothing"
    assert target == expected
    if name != "postgres":  # which asks its server
        assert candidate_effect(sink, side)


def test_a_table_that_others_write_to_is_not_replaced(tmp_path: Path) -> None:
    sink, rows = LakeSink(path="sums"), pa.table({"n": [1]})
    side = Candidate("f", "lake-1", "g2-abc", Context(tmp_path, str(tmp_path)))

    def write(app: str | None) -> None:
        mark = None if app is None else CommitProperties(app_transactions=[Transaction(app, 0)])
        write_deltalake(str(tmp_path / "sums"), rows, mode="append", commit_properties=mark)

    write("headrace.f.g1-abc.lake-1")
    write("headrace.f.replay-77.lake-1")
    assert "sums__g2-abc" in sink.candidate_effect(side)
    write("headrace.ff.g1-abc.lake-1")
    assert code_of(lambda: sink.candidate_effect(side)) == "beside-others-wrote"


def test_a_candidate_writes_beside_or_nothing(shop: Shop) -> None:
    written = with_candidate_sinks(shop.flow, "g2-abc", shop.project.context)
    assert [step.sink.target for step in written.sinks] == ["lake/sums__g2-abc"]
    assert written.sinks[0].id == shop.flow.sinks[0].id, "batch marks go by the id"


def test_a_planted_batch_is_what_spark_finds(tmp_path: Path) -> None:
    write_batch(tmp_path, 3, {"orders": {"0": 5}}, None, watermark=50)
    (tmp_path / "commits" / "3").write_text('v1\n{"nextBatchWatermarkMs":70}')
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.next_watermark() == 70
    assert checkpoint.plant([{"orders": {"0": 9}}, None], 70) == 4
    planned = checkpoint.planned()
    assert planned is not None
    assert (planned.batch_id, planned.watermark_ms, planned.settings) == (4, 70, {"a": "b"})
    assert planned.ends == ({"orders": {"0": 9}}, None)
    assert checkpoint.in_flight()


def test_how_far_readers_are_is_compared_part_by_part(tmp_path: Path) -> None:
    known = KafkaSource(brokers=["127.0.0.1:9"], topic=["a", "b"]).positions(Context(tmp_path, ""))  # type: ignore[arg-type]
    assert known.reached({"a": {"0": 3}, "other": {"0": 9}}) == {"a:0": (3,)}
    assert known.reached({"other": {"0": 9}}) is None
    assert known.reached({"logOffset": 3}) is None
    assert known.moved({"a": {"0": 3, "1": 1}, "b": {"0": 4}}, {"a": {"0": 5}}) == {
        "a": {"0": 5, "1": 1},
        "b": {"0": 4},
    }
    has_reached = candidate_alignment.has_reached
    assert has_reached({"s": {"a:0": (3,), "a:1": (1,)}}, {"s": {"a:0": (3,)}})
    assert not has_reached({"s": {"a:0": (3,)}}, {"s": {"a:0": (3,), "a:1": (1,)}})
    assert has_reached({}, {"s": {"a:0": (0,)}}), "an empty topic is no reason to wait"


def test_a_switch_that_was_cut_off_is_finished(shop: Shop) -> None:
    shop.write(NEW)
    made = shop.start_candidate()
    side = shop.folder / "lake" / f"sums__{made.id}"
    write_deltalake(str(side), pa.table({"n": [1]}))
    write_batch(made.checkpoint_folder, 0, {"orders": {"0": 5, "1": 7}})
    candidate.mark_publishing(made, shop.first)
    assert code_of(lambda: candidate.abandon_candidate(shop.project, shop.state, "sums")) == "candidate-publishing"
    starter = FlowStarter(shop.project, shop.state, None)  # type: ignore[arg-type]
    (run,) = candidate_switch.create_runs(starter, make_plan(shop.project), Notes())
    assert run.switch is not None
    assert run.switch.phase == "switching", "the old generation does not run again"
    shop.state.generations("sums").switch(made)  # and dies here
    (run,) = candidate_switch.create_runs(starter, make_plan(shop.project), Notes())
    assert run.switch is None
    assert not side.exists()
    assert not (shop.state.generations("sums").folder / "candidate").exists()
    assert json.loads(json.dumps([one.id for one in shop.state.generations("sums").all()])) == [shop.first.id, made.id]


def test_a_candidate_can_be_given_up(shop: Shop) -> None:
    assert code_of(lambda: candidate.abandon_candidate(shop.project, shop.state, "sums")) == "no-candidate"
    shop.write(NEW)
    made = shop.start_candidate()
    side = shop.folder / "lake" / f"sums__{made.id}"
    write_deltalake(str(side), pa.table({"n": [1]}))
    shop.write("SELECT k FROM orders")
    candidate.abandon_candidate(shop.project, shop.state, "sums")
    assert not side.exists()
    generations = shop.state.generations("sums")
    assert (generations.candidate(), generations.all()) == (None, [shop.first])


def test_what_runs_goes_on_as_it_was_and_the_candidate_beside_it(shop: Shop) -> None:
    shop.write(NEW)
    made = shop.start_candidate()
    starter = FlowStarter(shop.project, shop.state, None)  # type: ignore[arg-type]
    (run,) = candidate_switch.create_runs(starter, make_plan(shop.project), Notes())
    assert run.switch is not None
    candidate = run.switch.candidate
    assert (run.name, candidate.name) == ("sums", "sums (candidate)")
    assert "count" in run.plan.sql.lower()
    assert "sum(" in candidate.plan.sql.lower()
    assert candidate.starter is not None
    assert candidate.starter.is_candidate
    assert candidate.starter.state.current("sums") == made
    (once,) = candidate_switch.create_runs(replace(starter, until_caught_up=True), make_plan(shop.project), Notes())
    assert once.switch is None
    assert "count" in once.plan.sql.lower()


def test_batches_that_were_published_together_stay_together(tmp_path: Path) -> None:
    path, context = str(tmp_path / "sums"), Context(tmp_path, str(tmp_path))

    def write(mark: str, number: int, mode: Literal["append", "overwrite"] = "append") -> None:
        known = CommitProperties(app_transactions=[Transaction(f"headrace.f.{mark}", number)])
        write_deltalake(path, pa.table({"n": [number]}), mode=mode, commit_properties=known)

    for number in range(3):
        write("g1-a.lake", number)
    write("g2-b.lake.published", 7, "overwrite")
    write("g2-b.lake", 8)

    def undone(kept: tuple[str, int] | None) -> int:
        found = plan_undo(path, Rewind("f", "lake", context, kept))
        return -2 if found is None else found.version

    assert [undone(("g2-b", 8)), undone(("g2-b", 7)), undone(("g1-a", 1)), undone(None)] == [-2, 3, 1, -1]
    assert code_of(lambda: undone(("g2-b", 6))) == "rewind-history-gone"
