"""Changes of a running flow, done for real: those called safe give the right rows, the others would not."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from tests.system.conftest import RunProject, consume, produce

from headrace.core.errors import ProjectError
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.positions.upgrade import FlowChange, detect_change, start_new_generation
from headrace.engine.state.state import StateDir
from headrace.plan.planner import make_plan
from headrace.project.loader import load
from headrace.sinks.files import FilesSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.testing.services import Kafka

pytestmark = pytest.mark.spark

PROJECT = """
project: changing
streams:
  rides:
    source: {{type: files, path: rides}}
    format: {{type: json, columns: "id bigint, service string, area string, fare double, tip double, ts timestamp"}}
    event_time: {{column: ts, watermark: 1s}}
  notes:
    source: {{type: files, path: notes}}
    format: {{type: json, columns: "ride bigint, text string, more string, at timestamp"}}
    event_time: {{column: at, watermark: 1s}}
defaults: {{partitions: 1}}
flows:
  f:
    sql: >-
      {sql}
    sinks: [{{type: files, path: out, contains: json}}]
    {keys}
"""


def ride(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "service": ("RIDE", "FOOD")[number % 2],
        "area": ("N", "S", "E")[number % 3],
        "fare": float(number),
        "tip": 1000.0,
        "ts": f"2026-01-01T00:00:{number:02}.000Z",
    }


def note(number: int) -> dict[str, Any]:
    return {"ride": number, "text": f"t{number}", "more": f"m{number}", "at": f"2026-01-01T00:00:{number:02}.500Z"}


FIRST, SECOND, END = range(8), range(8, 30), 59
"""Seconds of the rides before and after the change; the last one closes all windows before it."""


@dataclass(frozen=True)
class Flow:
    """A project with one flow on its way through a change."""

    folder: Path
    run_project: RunProject

    def write(self, sql: str, keys: str = "") -> None:
        (self.folder / "headrace.yaml").write_text(PROJECT.format(sql=sql, keys=keys))

    def feed(self, name: str, numbers: Any) -> None:
        for folder, made in (("rides", ride), ("notes", note)):
            (self.folder / folder).mkdir(exist_ok=True)
            text = "".join(json.dumps(made(number)) + "\n" for number in numbers)
            (self.folder / folder / f"{name}.json").write_text(text)

    def change(self) -> FlowChange:
        project = load(self.folder)
        return detect_change(project, StateDir(Path(project.context.state)), make_plan(project).flow("f"))

    def anew(self) -> str:
        project = load(self.folder)
        return start_new_generation(project, StateDir(Path(project.context.state)), self.change()).id

    def anyway(self) -> ProjectError | None:
        """Let Spark go on from the old checkpoint, as if nobody had compared; what it says."""
        change = self.change()
        assert change.generation is not None
        change.generation.describe(replace(change.generation.manifest, shape=change.shape, pins=change.pins))
        try:
            self.run_project(self.folder)
        except ProjectError as error:
            return error
        return None

    def rows(self, generation: str = "") -> list[dict[str, Any]]:
        files = sorted((self.folder / "out").glob("*.json"))
        files = [file for file in files if generation.replace("-", "_") in file.name]
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.fixture
def flow(tmp_path: Path, run_project: RunProject) -> Flow:
    made = Flow(tmp_path, run_project)
    made.feed("1", FIRST)
    return made


def counted(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(json.dumps(row, sort_keys=True) for row in rows)


def totals(
    key: Callable[[dict[str, Any]], dict[str, Any]], seconds: int = 5, only: Callable[[int], bool] = lambda _: True
) -> Counter[str]:
    """An offline recompute: fares per window and key, of all windows that the last ride closes."""
    groups: dict[str, float] = {}
    for number in [*FIRST, *SECOND]:
        if only(number):
            since = f"2026-01-01T00:00:{number // seconds * seconds:02}.000Z"
            group = json.dumps({"since": since, **key(ride(number))})
            groups[group] = groups.get(group, 0.0) + number
    return counted([{**json.loads(group), "fares": fares} for group, fares in groups.items()])


def windowed(keys: str = "service", rest: str = "", aggregates: str = "sum(fare) AS fares", size: int = 5) -> str:
    return (
        f"SELECT window.start AS since, {keys}, {aggregates} FROM rides {rest} "
        f"GROUP BY window(ts, '{size} seconds'), {keys}"
    )


SAFE = {
    "filter": (windowed(rest="WHERE fare < 100"), "", totals(lambda r: {"service": r["service"]})),
    "filter from now on": (
        windowed(rest="WHERE service = 'FOOD' OR fare < 8"),
        "",
        totals(lambda r: {"service": r["service"]}, only=lambda n: n % 2 == 1 or n < 8),
    ),
    "spelling, trigger, mode": (
        windowed().lower().replace("as fares", "AS fares"),
        "mode: batch\n    trigger: 3s\n    max_records: 7",
        totals(lambda r: {"service": r["service"]}),
    ),
}


@pytest.mark.parametrize("name", SAFE)
def test_a_safe_change_goes_on_from_the_checkpoint(flow: Flow, name: str) -> None:
    sql, keys, expected = SAFE[name]
    flow.write(windowed())
    flow.run_project(flow.folder)
    flow.feed("2", [*SECOND, END])
    flow.write(sql, keys)
    assert flow.change().verdict.kind == "safe"
    flow.run_project(flow.folder)
    assert counted(flow.rows()) == expected
    assert flow.change().verdict.reasons == (), "what has been settled is not said again"


BOTH = "rides r JOIN notes n ON r.id = n.ride AND n.at BETWEEN r.ts AND r.ts + INTERVAL 5 SECONDS"

UNSAFE: dict[str, tuple[str, str, str, Counter[str], str]] = {
    "another key": (
        windowed(),
        windowed("service, area"),
        "",
        totals(lambda r: {"service": r["service"], "area": r["area"]}),
        "needs-new-generation",
    ),
    "keys in another order": (
        windowed("service, area"),
        windowed("area, service"),
        "",
        totals(lambda r: {"service": r["service"], "area": r["area"]}),
        "wrong",
    ),
    "another aggregate": (
        windowed(aggregates="max(fare) AS fares"),
        windowed(),
        "",
        totals(lambda r: {"service": r["service"]}),
        "wrong",
    ),
    "another window": (windowed(size=4), windowed(), "", totals(lambda r: {"service": r["service"]}), "wrong"),
    "partitions": (windowed(), windowed(), "partitions: 2", totals(lambda r: {"service": r["service"]}), "ignored"),
    "distinct columns": (
        "SELECT DISTINCT service, area, ts FROM rides",
        "SELECT DISTINCT area, service, ts FROM rides",
        "",
        counted([{key: ride(n)[key] for key in ("service", "area", "ts")} for n in [*FIRST, *SECOND]]),
        "wrong",
    ),
    "stateless now": (
        windowed(),
        "SELECT id FROM rides",
        "",
        counted([{"id": n} for n in [*FIRST, *SECOND, END]]),
        "needs-new-generation",
    ),
    "one more input": (
        "SELECT id FROM rides",
        "SELECT id FROM rides UNION ALL SELECT ride FROM notes",
        "",
        counted([{"id": n} for n in [*FIRST, *SECOND, END]] * 2),
        "needs-new-generation",
    ),
    "what a join keeps": (
        f"SELECT r.id, n.text AS said FROM {BOTH}",
        f"SELECT r.id, r.area, n.text AS said FROM {BOTH}",
        "",
        counted([{"id": n, "area": ride(n)["area"], "said": f"t{n}"} for n in [*FIRST, *SECOND, END]]),
        "needs-new-generation",
    ),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_a_change_that_spark_cannot_take_over_gets_a_new_generation(flow: Flow, name: str) -> None:
    before, now, keys, expected, anyway = UNSAFE[name]
    flow.write(before)
    flow.run_project(flow.folder)
    old = flow.change().generation
    flow.feed("2", [*SECOND, END])
    flow.write(now, keys)
    assert flow.change().verdict.kind == "new_generation"
    with pytest.raises(ProjectError) as refused:
        flow.run_project(flow.folder)
    assert (refused.value.code, int(refused.value.exit_code)) == ("needs-new-generation", 5)
    assert flow.change().verdict.kind == "new_generation", "what was refused is still the old one"

    generation = flow.anew()
    flow.run_project(flow.folder)
    assert counted(flow.rows(generation)) == expected

    assert old is not None
    StateDir(flow.folder / ".headrace").generations("f").switch(old)
    said = flow.anyway()
    match anyway:
        case "wrong":
            assert said is None, "Spark takes it without a word"
            assert counted(flow.rows(old.id)) != expected
        case "ignored":
            assert said is None
            assert old.checkpoint.planned().settings["spark.sql.shuffle.partitions"] == "1"  # type: ignore[union-attr]
        case code:
            assert said is not None
            assert said.code == code


def test_sinks_may_come_go_and_change_places_with_a_batch_in_flight(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sinks(*paths: str) -> None:
        listed = ", ".join(f"{{type: files, path: {path}, contains: json}}" for path in paths)
        text = PROJECT.format(sql="SELECT id FROM rides", keys="")
        text = text.replace("sinks: [{type: files, path: out, contains: json}]", f"sinks: [{listed}]")
        (flow.folder / "headrace.yaml").write_text(text)

    def ids(path: str) -> list[int]:
        files = (flow.folder / path).glob("*.json")
        return sorted(json.loads(line)["id"] for file in files for line in file.read_text().splitlines())

    def dies(sink: FilesSink, rows: Any, batch: Any) -> None:
        if sink.path == "b":
            raise RuntimeError("the engine dies here")
        write_batch(sink, rows, batch)

    write_batch = FilesSink.write_batch
    monkeypatch.setattr(FilesSink, "write_batch", dies)
    sinks("gone", "a", "b")
    with pytest.raises(ProjectError, match="the engine dies here"):
        flow.run_project(flow.folder)
    assert (ids("a"), ids("b")) == ([*FIRST], [])
    monkeypatch.undo()
    sinks("new", "b", "a")
    change = flow.change()
    assert change.verdict.kind == "safe"
    assert change.verdict.reasons[-1] == "batch 0 was started before the change and is finished after it"
    flow.feed("2", SECOND)
    flow.run_project(flow.folder)
    everything = [*FIRST, *SECOND]
    assert (ids("a"), ids("b"), ids("new"), ids("gone")) == (everything, everything, everything, [*FIRST])


REALTIME = """
project: quick
streams:
  numbers:
    source: {{type: kafka, brokers: {brokers}, topic: {source}}}
    format: {{type: json, columns: "n bigint"}}
    on_error: skip
flows:
  f:
    mode: {mode}
    sql: SELECT n FROM numbers
    sinks: [{{type: kafka, brokers: {brokers}, topic: {target}}}]
"""


@pytest.mark.service
def test_to_realtime_and_back_loses_nothing(
    tmp_path: Path, spark: SparkSession, kafka: Kafka, topic: Callable[..., str]
) -> None:
    source, target = topic(), topic()

    def found() -> set[int]:
        return {json.loads(message.value())["n"] for message in consume(kafka, target)}

    for number, mode in enumerate(("micro_batch", "realtime", "micro_batch")):
        wanted = set(range(10 * number + 10))
        produce(kafka, source, [json.dumps({"n": 10 * number + n}).encode() for n in range(10)])
        text = REALTIME.format(brokers=kafka.address, source=source, target=target, mode=mode)
        (tmp_path / "headrace.yaml").write_text(text)
        project = load(tmp_path)
        starter = FlowStarter(project, StateDir(tmp_path / ".headrace"), spark)
        plan = make_plan(project).flow("f")
        verdict = detect_change(project, starter.state, plan).verdict
        assert verdict.kind == ("safe" if number else "first")
        query = starter.start(plan)
        try:
            deadline = time.monotonic() + 600
            while found() != wanted and time.monotonic() < deadline:
                assert query.exception() is None
            assert found() == wanted
            if mode == "micro_batch":
                query.processAllAvailable()
        finally:
            query.stop()


COUNTED = """
project: counted
streams:
  numbers:
    source: {{type: kafka, brokers: {brokers}, topic: {topic}}}
    format: {{type: json, columns: "n bigint"}}
flows:
  f:
    output: update
    sql: SELECT n % {parts} AS k, count(*) AS n FROM numbers GROUP BY 1
    sinks: [{{type: lake, path: lake/by_{parts}, key: [k]}}]
"""


@pytest.mark.service
def test_a_new_generation_may_begin_where_the_old_one_is(
    tmp_path: Path, run_project: RunProject, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name = topic(partitions=2)
    state = StateDir(tmp_path / ".headrace")

    def run(parts: int, numbers: range) -> dict[int, int]:
        produce(kafka, name, [json.dumps({"n": n}).encode() for n in numbers])
        (tmp_path / "headrace.yaml").write_text(COUNTED.format(brokers=kafka.address, topic=name, parts=parts))
        project = load(tmp_path)
        change = detect_change(project, state, make_plan(project).flow("f"))
        if change.verdict.kind == "new_generation":
            start_new_generation(project, state, change, "current")
        run_project(tmp_path)
        rows = DeltaTable(str(tmp_path / "lake" / f"by_{parts}")).to_pyarrow_table().to_pylist()
        return {row["k"]: row["n"] for row in rows}

    assert run(2, range(10)) == {0: 5, 1: 5}
    assert run(3, range(10, 16)) == {0: 2, 1: 2, 2: 2}
    old, new = state.generations("f").all()
    assert new.manifest.base == {"generation": old.id, "batch": old.checkpoint.committed().batch_id}  # type: ignore[union-attr]
    assert run(3, range(16, 19)) == {0: 3, 1: 3, 2: 3}
