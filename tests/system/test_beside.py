"""A new generation built beside the running one, for real: readers see the old rows, then the new, each record once."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from tests.system.conftest import consume, produce

from headrace.cli.projects._generation_changes import NewGenerations, settle_changes
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.state.generations import Generation
from headrace.engine.state.state import StateDir
from headrace.engine.supervise.candidate_alignment import Alignment
from headrace.engine.supervise.candidate_switch import CandidateSwitch
from headrace.engine.supervise.runner import FlowRun, Runner
from headrace.plan.planner import make_plan
from headrace.project.loader import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.testing.services import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.service]

PROJECT = """
project: beside
defaults: {{partitions: 1, trigger: 200ms, max_records: {max_records}}}
streams:
  events:
    source: {{type: kafka, brokers: "{brokers}", topic: {source}}}
    format: {{type: json, columns: "k string, n bigint, ts bigint"}}
    event_time: {{column: ts, unit: ms, watermark: 10s}}
flows:
  sums:
    sql: {sql}
    sinks:
      - {{type: lake, path: lake/sums}}
      - {{type: kafka, brokers: "{brokers}", topic: {target}, key: k, delivery: exactly_once}}
"""
OLD = "SELECT window.start AS since, k, count(*) AS n, 'old' AS by FROM events GROUP BY window(ts, '5 seconds'), k"
NEW = "SELECT window.start AS since, k, sum(n) AS n, 'new' AS by FROM events GROUP BY window(ts, '5 seconds'), k"
BEGAN = 1_767_225_600_000
PATIENCE = 300.0


def event(number: int) -> dict[str, Any]:
    """Ten a second, three keys."""
    return {"k": f"k{number % 3}", "n": number, "ts": BEGAN + number * 100}


def windows(numbers: range, add: Callable[[int], int]) -> dict[tuple[int, str], int]:
    """An offline recompute of all windows that the last event closes."""
    found: Counter[tuple[int, str]] = Counter()
    closed = event(numbers[-1])["ts"] - 10_000
    for one in map(event, numbers):
        since = one["ts"] // 5000 * 5000
        if since + 5000 <= closed:
            found[since, one["k"]] += add(one["n"])
    return dict(found)


def await_true(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.1)


@dataclass
class Bench:
    """A flow between two topics, with a table."""

    folder: Path
    spark: SparkSession
    kafka: Kafka
    source: str
    target: str
    fed: int = 0

    @property
    def state(self) -> StateDir:
        return StateDir(self.folder / ".headrace")

    def write(self, sql: str, max_records: int = 10_000) -> None:
        text = PROJECT.format(
            brokers=self.kafka.address, source=self.source, target=self.target, sql=sql, max_records=max_records
        )
        (self.folder / "headrace.yaml").write_text(text)

    def feed(self, count: int) -> None:
        numbers = range(self.fed, self.fed + count)
        produce(self.kafka, self.source, [json.dumps(event(n)).encode() for n in numbers], lambda n: b"%d" % (n % 7))
        self.fed += count

    @contextmanager
    def running(self, anew: NewGenerations | None = None) -> Iterator[FlowRun]:
        project = load(self.folder)
        plan = make_plan(project)
        settle_changes(project, self.state, plan, anew or NewGenerations())
        runner = Runner(FlowStarter(project, self.state, self.spark), plan)
        thread = threading.Thread(target=runner.run)
        thread.start()
        try:
            yield runner.runs[0]
        finally:
            runner.stopping.set()
            thread.join(PATIENCE)
        assert runner.runs[0].error is None

    def lake(self, name: str = "sums") -> list[dict[str, Any]]:
        try:
            return DeltaTable(str(self.folder / "lake" / name)).to_pyarrow_table().to_pylist()
        except TableNotFoundError:
            return []

    def topic(self) -> list[dict[str, Any]]:
        return [json.loads(message.value()) for message in consume(self.kafka, self.target)]


def by_window(rows: list[dict[str, Any]]) -> dict[tuple[int, str], int]:
    found = {}
    for row in rows:
        since = row["since"]
        moment = datetime.fromisoformat(since) if isinstance(since, str) else since
        key = (round(moment.timestamp() * 1000), row["k"])
        assert key not in found, f"{key} is there twice"
        found[key] = row["n"]
    return found


@pytest.fixture
def bench(tmp_path: Path, spark: SparkSession, kafka: Kafka, topic: Callable[..., str]) -> Bench:
    return Bench(tmp_path, spark, kafka, topic(partitions=2), topic())


def test_readers_see_old_rows_until_the_new_generation_has_caught_up(bench: Bench) -> None:
    bench.write(OLD)
    bench.feed(400)
    with bench.running():
        await_true(lambda: by_window(bench.lake()) == windows(range(400), lambda _: 1), "the first run")
    old = bench.state.current("sums")

    bench.write(NEW, max_records=150)
    with bench.running(NewGenerations(("sums",), beside=True)) as run:
        assert run.switch is not None
        await_true(lambda: run.switch is None or run.switch.candidate.batches > 0, "a batch of the candidate")
        if run.switch is not None:
            assert {row["by"] for row in bench.lake()} == {"old"}
        bench.feed(200)
        await_true(lambda: run.switch is None, "the switch")
        bench.feed(200)
        await_true(lambda: by_window(bench.lake()) == windows(range(800), lambda n: n), "the rows of the new one")
        await_true(lambda: len(bench.topic()) == len(windows(range(800), int)), "the topic")
    assert {row["by"] for row in bench.lake()} == {"new"}
    said = bench.topic()
    counted, summed = windows(range(800), lambda _: 1), windows(range(800), lambda n: n)
    by = {key: row["by"] for key, row in zip(by_window(said), said, strict=True)}
    assert by_window(said) == {key: counted[key] if by[key] == "old" else summed[key] for key in counted}
    assert set(by.values()) == {"old", "new"}
    assert max(key for key in by if by[key] == "old")[0] < min(key for key in by if by[key] == "new")[0]
    generations = bench.state.generations("sums")
    assert generations.candidate() is None
    assert generations.all()[0] == old
    assert list((bench.folder / "lake").iterdir()) == [bench.folder / "lake" / "sums"]


PASSED = "SELECT k, n, '{by}' AS by FROM events"


def handed_over(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let records come between the candidate's last batch and that of the one that runs."""
    switch = CandidateSwitch._switch

    def late(self: CandidateSwitch) -> None:
        bench.feed(30)
        aim = bench.fed
        await_true(lambda: sum(_offsets(self._current)) == aim, "the running generation")
        assert sum(_offsets(self._candidate)) < aim
        switch(self)

    monkeypatch.setattr(CandidateSwitch, "_switch", late)


def _offsets(generation: Generation) -> list[int]:
    done = generation.checkpoint.committed()
    return [n for end in (done.ends if done else ()) for parts in end.values() for n in parts.values()]


@pytest.mark.parametrize("planted", [False, True], ids=["as it is", "without the common place"])
def test_every_record_is_on_one_side_of_the_switch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    bench.write(PASSED.format(by="old"))
    bench.feed(60)
    handed_over(bench, monkeypatch)
    if planted:
        monkeypatch.setattr(Alignment, "align", lambda _self: None)
    with bench.running():
        await_true(lambda: len(bench.topic()) == 60, "the first run")
    bench.write(PASSED.format(by="new"))
    with bench.running(NewGenerations(("sums",), beside=True)) as run:
        await_true(lambda: run.switch is None, "the switch")
        bench.feed(30)
        await_true(lambda: any(row["n"] == 119 for row in bench.topic()), "records after the switch")
    said = Counter((row["n"], row["by"]) for row in bench.topic())
    expected = Counter({(n, "old" if n < 90 else "new"): 1 for n in range(120)})
    assert (said == expected) is not planted
    if not planted:
        assert sorted(row["n"] for row in bench.lake()) == [*range(120)]
        assert {row["by"] for row in bench.lake()} == {"new"}
