"""Steps that ask other services, in whole flows: rows, dead letters, a service that is away, metrics, replay."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from benchmarks.answers import Answers, answers

from headrace.core.errors import ProjectError
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.letters.dead_letter_index import DeadLetterFilter, DeadLetterIndex
from headrace.engine.letters.dead_letters import read_dead_letters
from headrace.engine.observe.step_metrics import step_families
from headrace.engine.replay.replay import DeadLetterReplayer, ReplayOutcome, single_writer_lock
from headrace.engine.replay.replay_plan import ReplayPlanner
from headrace.engine.state.state import StateDir
from headrace.engine.supervise.runner import FlowRun, Runner
from headrace.plan.planner import make_plan
from headrace.project.loader import load
from headrace.testing.services.ports import choose

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    RunProject = Callable[..., list[FlowRun]]

pytestmark = [pytest.mark.spark, pytest.mark.service]

PROJECT = """
project: enriching
state: state
streams:
  orders:
    source: {{type: files, path: in}}
    format: {{type: json, columns: "id bigint, user string, raw binary, seen map<string, int>"}}
flows:
  enriched:
    before:
      orders:
        - type: http
          url: "{url}/users/{{user}}"
          columns: {{name: $.user.name}}
          backoff: 1ms
          give_up: 2s
          timeout: 1s
    sql: SELECT id, user, name, raw, seen, concat('n', CAST(id % 10 AS STRING)) AS digit FROM orders
    after:
      - type: http
        url: "{url}/users/{{digit}}-{{id}}"
        columns: {{score: {{path: $.user.score, type: double}}}}
        backoff: 1ms
        retries: 1
        give_up: 2s
        timeout: 1s
      - {{type: constant, values: {{last: true}}}}
    sinks: [{{type: files, path: out, contains: json}}]
"""


@pytest.fixture
def service() -> Iterator[Answers]:
    with answers(choose(["client"], {})["client"]) as made:
        yield made


@pytest.fixture
def project(tmp_path: Path, service: Answers) -> Path:
    (tmp_path / "headrace.yaml").write_text(PROJECT.format(url=service.url))
    (tmp_path / "in").mkdir()
    return tmp_path


def feed(project: Path, ids: range, user: str = "user") -> None:
    rows = [{"id": n, "user": f"{user}-{n}", "raw": "aGk=", "seen": {"a": n}} for n in ids]
    whole = project / f"{ids.start}.json"
    whole.write_text("\n".join(map(json.dumps, rows)))
    whole.rename(project / "in" / whole.name)  # a flow that runs must not see a part of it


def written(project: Path) -> list[dict[str, Any]]:
    files = [str(file) for file in (project / "out").rglob("*.json")]
    rows = [json.loads(line) for file in files for line in Path(file).read_text().splitlines()]
    return sorted(rows, key=lambda row: row["id"])


def letters(project: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_dead_letters(project / "state" / "dead_letters").to_pylist()
    return found


def replay(project: Path, spark: SparkSession) -> list[ReplayOutcome]:
    loaded = load(project)
    state = StateDir(Path(loaded.context.state))
    book = DeadLetterIndex(state.dead_letters)
    with book.locked():
        shelf = book.read()
        plan = ReplayPlanner(loaded, state, shelf).plan(DeadLetterFilter().of(shelf.index), [])
        assert not plan.refused
        with single_writer_lock(state, plan.replays):
            return [DeadLetterReplayer(loaded, state, spark).run(one, shelf) for one in plan.replays]


def test_every_row_is_enriched_or_a_letter_and_letters_come_through_later(
    project: Path, service: Answers, run_project: RunProject, spark: SparkSession
) -> None:
    service.control(failing=100, status=500)
    feed(project, range(300))
    run_project(project, "enriched")
    rows, kept = written(project), letters(project)
    by_step = {step: [one for one in kept if one["stream"] == step] for step in ("before.orders.0", "after.0")}
    assert len(rows) + len(kept) == 300
    assert all(len(found) > 10 for found in by_step.values())
    assert {one["reason"] for one in kept} == {"http-status-500"}
    assert {row["name"] for row in rows} == {f"name of user-{row['id']}" for row in rows}
    assert rows[0]["seen"] == {"a": rows[0]["id"]}
    families = {family.name: family.samples for family in step_families({"enriched"})}
    calls = {sample.labels["step"]: sample.value for sample in families["headrace_step_calls"]}
    assert calls["before.orders.0"] >= 300
    failures = {s.labels["class"] for s in families["headrace_step_failures"]}
    assert failures == {"5xx"}
    counts = [s for s in families["headrace_step_latency_seconds"] if s.name.endswith("_count")]
    assert {sample.labels["step"]: sample.value for sample in counts} == calls

    # half of the keys still fail: what fails where it failed before stays, what comes further becomes a new letter
    service.control(failing=50, status=500)
    [outcome] = replay(project, spark)
    assert outcome.replayed + outcome.still_bad == len(kept)
    assert outcome.still_bad > 0
    assert len(written(project)) == len(rows) + outcome.replayed - outcome.new
    service.control()
    outcomes = replay(project, spark)
    assert sum(one.still_bad + one.new for one in outcomes) == 0
    after = written(project)
    assert [row["id"] for row in after] == list(range(300))
    assert [row["score"] for row in after] == [len(f"n{n % 10}-{n}") + 0.5 for n in range(300)]
    assert {row["raw"] for row in after} == {rows[0]["raw"]}
    assert all(row["last"] and row["seen"] == {"a": row["id"]} for row in after)
    assert (
        DeadLetterIndex(project / "state" / "dead_letters").read().index.filter(ds.field("status") == "open").num_rows
        == 0
    )


def test_a_dead_service_degrades_the_flow_which_goes_on_by_itself(
    project: Path, service: Answers, spark: SparkSession
) -> None:
    feed(project, range(20))
    loaded = load(project, overrides=["restart.backoff=200ms", "flows.enriched.trigger=200ms"])
    state = StateDir(Path(loaded.context.state))
    runner = Runner(FlowStarter(loaded, state, spark), make_plan(loaded))
    seen: list[str] = []

    def watch(runs: Any) -> None:
        run = runs[0]
        if run.reason is not None and run.reason.code not in seen:
            seen.append(run.reason.code)
        if run.batches and not seen and service.process.poll() is None:
            service.stop()
            feed(project, range(100, 120))
        if seen and run.query is None and service.process.poll() is not None:
            service.start_again()  # the batch was given up, and has to be run again
        if len(written(project)) == 40 and run.state == "running":
            runner.stopping.set()

    began = time.monotonic()
    [run] = runner.run(seconds=600, report=watch)
    assert time.monotonic() - began < 590, (run.state, run.error, seen)
    assert seen == ["service-away"]
    assert run.restarts >= 1
    assert [row["id"] for row in written(project)] == [*range(20), *range(100, 120)]
    assert letters(project) == []


def test_a_service_that_is_not_there_is_said_before_the_start(project: Path, service: Answers) -> None:
    from headrace.engine.flows.checks import check_services

    service.stop()
    loaded = load(project)
    with pytest.raises(ProjectError) as caught:
        check_services(loaded, make_plan(loaded))
    assert caught.value.code == "service-away"
    assert caught.value.where is not None
    assert caught.value.where.path == "flows.enriched.before.orders[0]"
