"""Newer schemas of a registry: tried on the flows, taken over between two batches, or refused."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass
from tests.formats.descriptor_server import DescriptorServer, descriptor_server

from headrace.core.encoding.descriptors import find_message
from headrace.core.errors import ProjectError
from headrace.core.runtime.backoff import Backoff
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.observe.metrics import Metrics
from headrace.engine.observe.probes import ClosedLetterCounter, FileCounter, LagMeter
from headrace.engine.observe.status import EngineStatus
from headrace.engine.state.state import StateDir
from headrace.engine.supervise.runner import Runner
from headrace.engine.supervise.schema_watch import SchemaWatch
from headrace.formats.protobuf import descriptor_registry
from headrace.plan.planner import make_plan
from headrace.project.loader import Project, load
from headrace.testing.lists import ListSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.testing.services import Kafka

F = FieldDescriptorProto
ID, SUM, NOTE = ("id", 1, F.TYPE_INT64), ("sum", 2, F.TYPE_INT32), ("note", 3, F.TYPE_STRING)


def order(*fields: tuple[str, int, Any]) -> bytes:
    file = FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    for name, number, kind in fields:
        message.field.add(name=name, number=number, type=kind, label=F.LABEL_OPTIONAL)
    return FileDescriptorSet(file=[file]).SerializeToString()


def record(descriptor_set: bytes, **values: Any) -> bytes:
    project: bytes = GetMessageClass(find_message(descriptor_set, "shop.Order"))(**values).SerializeToString()
    return project


FIRST = order(ID, SUM)
ADDED = order(ID, SUM, NOTE)
BROKEN = order(ID, ("sum", 2, F.TYPE_STRING), NOTE)
LESS = order(ID, NOTE)

PROJECT = """
project: shop
streams:
  orders:
    source: {{type: kafka, brokers: "{brokers}", topic: {topic}}}
    format: {{type: protobuf, message: shop.Order, descriptors: {{url: "{url}", refresh: 200ms}}}}
flows:
{flows}
state: state
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[DescriptorServer]:
    monkeypatch.setattr(descriptor_registry, "_BACKOFF", Backoff(0.001, 0.001))
    with descriptor_server(FIRST) as running:
        yield running


def write_project(
    folder: Path, server: DescriptorServer, brokers: str = "127.0.0.1:1", topic: str = "t", **sql: str
) -> Project:
    flows = "\n".join(f"  {name}: {text}" for name, text in sql.items())
    text = PROJECT.format(url=server.url, flows=flows, brokers=brokers, topic=topic)
    (folder / "headrace.yaml").write_text(text)
    return load(folder)


def watch_of(project: Project) -> SchemaWatch:
    make_plan(project)  # keeps the first schema
    return SchemaWatch(project, StateDir.of(project.context), lambda _flow: None)


def make_due(project: Project) -> None:
    """Let the kept copy be old."""
    for file in Path(project.context.state).rglob("descriptors/*.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "asked_at": 0}))


def start_first_generation(project: Project) -> None:
    """Let every flow have a generation with a batch."""
    state = StateDir.of(project.context)
    from headrace.engine.positions.upgrade import resolve_generation

    for flow in make_plan(project).flows:
        offsets = resolve_generation(project, state, flow).checkpoint_folder / "offsets"
        offsets.mkdir(parents=True)
        said = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}}
        (offsets / "0").write_text(f"v1\n{json.dumps(said)}\n" + '{"t":{"0":5}}')


STATELESS = "{sql: SELECT * FROM orders, sinks: [noop]}"
SUMS = "{sql: 'SELECT id, sum FROM orders', sinks: [noop]}"
DISTINCT = "{sql: SELECT DISTINCT * FROM orders, sinks: [noop], mode: batch}"


def test_an_added_field_is_taken_over_by_the_flows_that_read_it(tmp_path: Path, server: DescriptorServer) -> None:
    project = write_project(tmp_path, server, all=STATELESS, sums=SUMS)
    watch = watch_of(project)
    start_first_generation(project)
    server.versions.append(ADDED)
    make_due(project)
    assert watch.look() == []
    plans = watch.take()
    assert sorted(plans) == ["all", "sums"]
    assert next(plans["all"].streams()).wanted.names == ["id", "sum", "note"]
    assert next(plans["sums"].streams()).wanted.names == ["id", "sum"]
    assert watch.take() == {}, "each plan is given once"
    assert watch.counts == {("orders", "accepted"): 1}


@pytest.mark.parametrize(
    ("flow", "newer", "said"),
    [
        (SUMS, BROKEN, "sum: was int32, and is string now (type-changed)"),
        ("{sql: 'SELECT id FROM orders', sinks: [noop]}", BROKEN, "(type-changed)"),
        (SUMS, LESS, "sum: is gone, and is used (field-gone)"),
        (STATELESS, LESS, "sum: is gone, and is used (field-gone)"),
        (DISTINCT, ADDED, "needs-new-generation"),
        (SUMS, ADDED.replace(b"Order", b"Ordre"), "message-gone"),
    ],
    ids=["type", "type-unused", "gone", "gone-of-all", "state", "message"],
)
def test_what_cannot_be_taken_is_refused_and_the_old_schema_stays(
    tmp_path: Path, server: DescriptorServer, flow: str, newer: bytes, said: str
) -> None:
    project = write_project(tmp_path, server, one=flow)
    watch = watch_of(project)
    start_first_generation(project)
    server.versions.append(newer)
    make_due(project)
    (warning,) = watch.look()
    assert warning.code == "schema-refused"
    assert said in warning.message
    assert watch.take() == {}
    (planned,) = make_plan(project).flows
    assert planned.streams().__next__().schema.names == ["id", "sum"]  # type: ignore[union-attr]
    assert watch.refusal(planned) is not None
    make_due(project)
    assert watch.look() == [], "it is said once"
    assert watch.counts == {("orders", "refused"): 1}
    again = SchemaWatch(project, StateDir.of(project.context), lambda _flow: None)
    assert again.refusal(planned) is not None, "a restart knows it"
    server.versions.append(FIRST)
    make_due(project)
    assert watch.look() == []
    assert watch.refusal(planned) is None


def test_a_column_that_no_flow_uses_may_go(tmp_path: Path, server: DescriptorServer) -> None:
    project = write_project(tmp_path, server, ids="{sql: 'SELECT id FROM orders', sinks: [noop]}")
    watch = watch_of(project)
    server.versions.append(LESS)
    make_due(project)
    assert watch.look() == []
    assert list(watch.take()) == ["ids"]


def test_sinks_have_a_say(tmp_path: Path, server: DescriptorServer) -> None:
    project = write_project(tmp_path, server, all=STATELESS)
    watch = watch_of(project)
    start_first_generation(project)

    def refuse(_flow: Any) -> None:
        raise ProjectError("lake-column-added", "no place for it")

    watch.probe = refuse
    server.versions.append(ADDED)
    make_due(project)
    assert [one.code for one in watch.look()] == ["schema-refused"]


def test_a_registry_that_is_away_is_only_a_warning(tmp_path: Path, server: DescriptorServer) -> None:
    project = write_project(tmp_path, server, all=STATELESS)
    watch = watch_of(project)
    server.failures = [500] * 5
    make_due(project)
    (warning,) = watch.look()
    assert warning.code == "descriptors-unreachable"
    assert "continues with the stored schema" in warning.message
    assert watch.counts == {("orders", "unreachable"): 1}


def _status_of(runner: Runner, project: Project, state: StateDir) -> EngineStatus:
    empty = FileCounter(state.dead_letters)
    lags = LagMeter("shop", project.context, state, runner.runs, runner.notes)
    counts = runner.schemas.counts if runner.schemas else {}
    closed = ClosedLetterCounter(state.replays)
    return EngineStatus("shop", 1, runner.runs, runner.notes, lags, empty, closed, empty, schemas=counts)


def _until(runner: Runner, condition: Callable[[], Any], what: str, seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        said = [(run.state, run.rows_in, str(run.last_error)) for run in runner.runs]
        assert time.monotonic() < deadline, f"{what} did not happen: {said}"
        assert not any(run.error for run in runner.runs), said
        time.sleep(0.05)  # polls a condition that has no event


def _with_list_sinks(project: Project, sinks: dict[str, ListSink]) -> Project:
    flows = {name: flow.model_copy(update={"sinks": [sinks[name]]}) for name, flow in project.spec.flows.items()}
    return replace(project, spec=project.spec.model_copy(update={"flows": flows}))


@pytest.mark.spark
@pytest.mark.service
def test_a_running_flow_takes_a_field_over_between_two_batches(
    tmp_path: Path, server: DescriptorServer, kafka: Kafka, topic: Callable[..., str], spark: SparkSession
) -> None:
    from tests.system.conftest import produce

    name = topic(partitions=2)
    flows = {
        "all": "{sql: SELECT * FROM orders, sinks: [noop], trigger: 100ms}",
        "sums": "{sql: 'SELECT sum, count(*) AS n FROM orders GROUP BY sum', output: update, sinks: [noop]}",
    }
    sinks = {flow: ListSink() for flow in flows}
    project = _with_list_sinks(write_project(tmp_path, server, kafka.address, name, **flows), sinks)
    state = StateDir.of(project.context)
    starter = FlowStarter(project, state, spark)
    plan = make_plan(project)
    schemas = SchemaWatch(project, state, starter.probe)
    runner = Runner(starter, plan, schemas=schemas)
    produce(kafka, name, [record(FIRST, id=i, sum=i % 3) for i in range(30)])
    # one that has the new field already: it is read with the schema of before, which ignores it
    produce(kafka, name, [record(ADDED, id=30, sum=1, note="early")])
    thread = threading.Thread(target=runner.run)
    thread.start()
    try:
        _until(runner, lambda: all(run.rows_in >= 31 for run in runner.runs), "reading")
        server.versions.append(ADDED)
        _until(runner, lambda: ("orders", "accepted") in schemas.counts, "acceptance")
        _until(
            runner,
            lambda: all(run.plan not in plan.flows and run.query is not None for run in runner.runs),
            "the restart",
        )
        produce(kafka, name, [record(ADDED, id=i, sum=i % 3, note=f"n{i}") for i in range(31, 60)])
        _until(runner, lambda: all(run.rows_in >= 60 for run in runner.runs), "reading with the new schema")
        server.versions.append(BROKEN)
        _until(runner, lambda: runner.runs[0].note is not None, "the refusal")
        produce(kafka, name, [record(ADDED, id=i, sum=i % 3, note=f"n{i}") for i in range(60, 70)])
        _until(runner, lambda: all(run.rows_in >= 70 for run in runner.runs), "reading on")
        document = _status_of(runner, project, state).document()
        assert [(one["state"], one["note"]["code"]) for one in document["flow_list"]] == [
            ("running", "schema-refused")
        ] * 2
        assert (
            b'headrace_schemas_total{outcome="refused",stream="orders"} 1.0'
            in Metrics(_status_of(runner, project, state)).text()
        )
    finally:
        runner.stopping.set()
        thread.join(300)
    assert [run.error for run in runner.runs] == [None, None]
    assert [run.restarts for run in runner.runs] == [0, 0]
    rows = sorted(sinks["all"].rows, key=lambda row: int(row["id"]))
    assert [row["id"] for row in rows] == list(range(70))
    assert [row.get("note") for row in rows] == [None] * 31 + [f"n{i}" for i in range(31, 70)]
    expected = {value: sum(1 for i in range(70) if (1 if i == 30 else i % 3) == value) for value in range(3)}
    assert {row["sum"]: row["n"] for row in sinks["sums"].rows} == expected, "the state went on"
    generations = [state.generations(flow).all() for flow in flows]
    assert [len(one) for one in generations] == [1, 1], "each flow went on with its own checkpoint"


@pytest.mark.spark
@pytest.mark.service
def test_a_table_grows_by_the_column_unless_it_may_not(
    tmp_path: Path, server: DescriptorServer, kafka: Kafka, topic: Callable[..., str], spark: SparkSession
) -> None:
    from tests.system.conftest import produce

    name = topic()
    flow = "{sql: SELECT * FROM orders, sinks: [{type: lake, path: lake/a, schema_evolution: EVOLVE}]}"

    def run(evolve: str) -> tuple[Project, FlowStarter]:
        project = write_project(tmp_path, server, kafka.address, name, all=flow.replace("EVOLVE", evolve))
        starter = FlowStarter(project, StateDir.of(project.context), spark, until_caught_up=True)
        (done,) = Runner(starter, make_plan(project)).run(seconds=300)
        assert done.error is None
        return project, starter

    produce(kafka, name, [record(FIRST, id=1, sum=2)])
    project, starter = run("refuse")
    server.versions.append(ADDED)
    make_due(project)
    (warning,) = SchemaWatch(project, starter.state, starter.probe).look()
    assert warning.code == "schema-refused"
    assert "lake-column-added" in warning.message
    # a fresh look after the sink has learned to grow
    (tmp_path / "headrace.yaml").write_text((tmp_path / "headrace.yaml").read_text().replace("refuse", "add"))
    for file in Path(project.context.state).rglob("descriptors/*.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "asked_at": 0, "refused": None}))
    grown = load(tmp_path)
    assert SchemaWatch(grown, starter.state, starter.probe).look() == []
    produce(kafka, name, [record(ADDED, id=2, sum=3, note="new")])
    run("add")
    rows = spark.read.format("delta").load(str(tmp_path / "lake/a")).orderBy("id").collect()
    assert [(row.id, row["sum"], row.note) for row in rows] == [(1, 2, None), (2, 3, "new")]


def test_the_schema_of_a_sink_grows_too(tmp_path: Path, server: DescriptorServer) -> None:
    with descriptor_server(FIRST) as other:
        form = f"{{type: protobuf, message: shop.Order, descriptors: {{url: '{other.url}'}}}}"
        sink = f"{{type: kafka, brokers: '127.0.0.1:1', topic: out, format: {form}}}"
        project = write_project(tmp_path, server, copies=f"{{sql: 'SELECT id, sum FROM orders', sinks: [{sink}]}}")
        watch = watch_of(project)
        make_plan(project)
        (written,) = watch._sink_formats().values()
        assert written.record_schema(project.context).names == ["id", "sum"]
        other.versions.append(ADDED)
        make_due(project)
        assert watch.look() == []
        assert written.record_schema(project.context).names == ["id", "sum", "note"]
        other.versions.append(BROKEN)
        make_due(project)
        assert [one.code for one in watch.look()] == ["schema-refused"]
        assert written.record_schema(project.context).names == ["id", "sum", "note"]
