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

from headrace.core.backoff import Backoff
from headrace.core.encoding.descriptors import find_message
from headrace.core.errors import ProjectError
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.observe.metrics import Metrics
from headrace.engine.observe.probes import ClosedLetters, FileCounter, LagMeter
from headrace.engine.observe.status import Board
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
    made: bytes = GetMessageClass(find_message(descriptor_set, "shop.Order"))(**values).SerializeToString()
    return made


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


def project(
    folder: Path, server: DescriptorServer, brokers: str = "127.0.0.1:1", topic: str = "t", **sql: str
) -> Project:
    flows = "\n".join(f"  {name}: {text}" for name, text in sql.items())
    text = PROJECT.format(url=server.url, flows=flows, brokers=brokers, topic=topic)
    (folder / "headrace.yaml").write_text(text)
    return load(folder)


def watch_of(made: Project) -> SchemaWatch:
    make_plan(made)  # keeps the first schema
    return SchemaWatch(made, StateDir.of(made.context), lambda _flow: None)


def due(made: Project) -> None:
    """Let the kept copy be old."""
    for file in Path(made.context.state).rglob("descriptors/*.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "asked_at": 0}))


def begun(made: Project) -> None:
    """Let every flow have a generation with a batch."""
    state = StateDir.of(made.context)
    from headrace.engine.positions.upgrade import settle

    for flow in make_plan(made).flows:
        offsets = settle(made, state, flow).checkpoint_folder / "offsets"
        offsets.mkdir(parents=True)
        said = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}}
        (offsets / "0").write_text(f"v1\n{json.dumps(said)}\n" + '{"t":{"0":5}}')


STATELESS = "{sql: SELECT * FROM orders, sinks: [noop]}"
SUMS = "{sql: 'SELECT id, sum FROM orders', sinks: [noop]}"
DISTINCT = "{sql: SELECT DISTINCT * FROM orders, sinks: [noop], mode: batch}"


def test_an_added_field_is_taken_over_by_the_flows_that_read_it(tmp_path: Path, server: DescriptorServer) -> None:
    made = project(tmp_path, server, all=STATELESS, sums=SUMS)
    watch = watch_of(made)
    begun(made)
    server.versions.append(ADDED)
    due(made)
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
    made = project(tmp_path, server, one=flow)
    watch = watch_of(made)
    begun(made)
    server.versions.append(newer)
    due(made)
    (warning,) = watch.look()
    assert warning.code == "schema-refused"
    assert said in warning.message
    assert watch.take() == {}
    (planned,) = make_plan(made).flows
    assert planned.streams().__next__().schema.names == ["id", "sum"]  # type: ignore[union-attr]
    assert watch.refusal(planned) is not None
    due(made)
    assert watch.look() == [], "it is said once"
    assert watch.counts == {("orders", "refused"): 1}
    again = SchemaWatch(made, StateDir.of(made.context), lambda _flow: None)
    assert again.refusal(planned) is not None, "a restart knows it"
    server.versions.append(FIRST)
    due(made)
    assert watch.look() == []
    assert watch.refusal(planned) is None


def test_a_column_that_no_flow_uses_may_go(tmp_path: Path, server: DescriptorServer) -> None:
    made = project(tmp_path, server, ids="{sql: 'SELECT id FROM orders', sinks: [noop]}")
    watch = watch_of(made)
    server.versions.append(LESS)
    due(made)
    assert watch.look() == []
    assert list(watch.take()) == ["ids"]


def test_sinks_have_a_say(tmp_path: Path, server: DescriptorServer) -> None:
    made = project(tmp_path, server, all=STATELESS)
    watch = watch_of(made)
    begun(made)

    def no(_flow: Any) -> None:
        raise ProjectError("lake-column-added", "no place for it")

    watch.probe = no
    server.versions.append(ADDED)
    due(made)
    assert [one.code for one in watch.look()] == ["schema-refused"]


def test_a_registry_that_is_away_is_only_a_warning(tmp_path: Path, server: DescriptorServer) -> None:
    made = project(tmp_path, server, all=STATELESS)
    watch = watch_of(made)
    server.failures = [500] * 5
    due(made)
    (warning,) = watch.look()
    assert warning.code == "descriptors-unreachable"
    assert "goes on with the schema that is kept" in warning.message
    assert watch.counts == {("orders", "unreachable"): 1}


def _board(runner: Runner, made: Project, state: StateDir) -> Board:
    empty = FileCounter(state.dead_letters)
    lags = LagMeter("shop", made.context, state, runner.runs, runner.notes)
    counts = runner.schemas.counts if runner.schemas else {}
    closed = ClosedLetters(state.replays)
    return Board("shop", 1, runner.runs, runner.notes, lags, empty, closed, empty, schemas=counts)


def _until(runner: Runner, condition: Callable[[], Any], what: str, seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        said = [(run.state, run.rows_in, str(run.last_error)) for run in runner.runs]
        assert time.monotonic() < deadline, f"{what} did not happen: {said}"
        assert not any(run.error for run in runner.runs), said
        time.sleep(0.05)  # polls a condition that has no event


def _into(made: Project, sinks: dict[str, ListSink]) -> Project:
    flows = {name: flow.model_copy(update={"sinks": [sinks[name]]}) for name, flow in made.spec.flows.items()}
    return replace(made, spec=made.spec.model_copy(update={"flows": flows}))


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
    made = _into(project(tmp_path, server, kafka.address, name, **flows), sinks)
    state = StateDir.of(made.context)
    starter = FlowStarter(made, state, spark)
    plan = make_plan(made)
    schemas = SchemaWatch(made, state, starter.probe)
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
        document = _board(runner, made, state).document()
        assert [(one["state"], one["note"]["code"]) for one in document["flow_list"]] == [
            ("running", "schema-refused")
        ] * 2
        assert (
            b'headrace_schemas_total{outcome="refused",stream="orders"} 1.0'
            in Metrics(_board(runner, made, state)).text()
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
        made = project(tmp_path, server, kafka.address, name, all=flow.replace("EVOLVE", evolve))
        starter = FlowStarter(made, StateDir.of(made.context), spark, until_caught_up=True)
        (done,) = Runner(starter, make_plan(made)).run(seconds=300)
        assert done.error is None
        return made, starter

    produce(kafka, name, [record(FIRST, id=1, sum=2)])
    made, starter = run("refuse")
    server.versions.append(ADDED)
    due(made)
    (warning,) = SchemaWatch(made, starter.state, starter.probe).look()
    assert warning.code == "schema-refused"
    assert "lake-column-added" in warning.message
    # a fresh look after the sink has learned to grow
    (tmp_path / "headrace.yaml").write_text((tmp_path / "headrace.yaml").read_text().replace("refuse", "add"))
    for file in Path(made.context.state).rglob("descriptors/*.json"):
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
        made = project(tmp_path, server, copies=f"{{sql: 'SELECT id, sum FROM orders', sinks: [{sink}]}}")
        watch = watch_of(made)
        make_plan(made)
        (written,) = watch._written().values()
        assert written.record_schema(made.context).names == ["id", "sum"]
        other.versions.append(ADDED)
        due(made)
        assert watch.look() == []
        assert written.record_schema(made.context).names == ["id", "sum", "note"]
        other.versions.append(BROKEN)
        due(made)
        assert [one.code for one in watch.look()] == ["schema-refused"]
        assert written.record_schema(made.context).names == ["id", "sum", "note"]
