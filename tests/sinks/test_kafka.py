from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from threading import Timer
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions
from pydantic import ValidationError
from tests.errors import code_of
from tests.sinks.changes import LIFE, Row, live
from tests.sinks.changes import frame as changes_frame
from tests.sinks.trials import Trial

from headrace.core.context import Batch, Context
from headrace.core.endpoints import Op
from headrace.core.errors import ProjectError
from headrace.sinks.kafka import KafkaSink, fixed_tasks, transactions
from headrace.sinks.kafka import share as share_module
from headrace.sinks.kafka.records import nested_schema
from headrace.sinks.kafka.share import Share
from headrace.sinks.kafka.transactions import TransactionalWrite
from headrace.sinks.kafka.writers import Sharing, pinned_sharing
from headrace.systems.kafka.cluster import Cluster
from headrace.testing.services import Kafka

HERE = Context(root=Path("/project"), state="/state")
Topic = Callable[..., str]


def sink(**options: Any) -> KafkaSink:
    return KafkaSink.model_validate({"brokers": "a:9092", "topic": "out", **options})


def refusal(**options: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        sink(**options)
    return caught.value.errors()[0]["type"]


def consume(kafka: Kafka, topic: str) -> list[Any]:
    """All that a reader of committed records sees, partition by partition."""
    settings = {
        "bootstrap.servers": kafka.address,
        "group.id": "test",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "log_level": 0,
    }
    found, open_partitions = [], len(kafka.admin().list_topics(topic, 10).topics[topic].partitions)
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(open_partitions)])
        while open_partitions:
            message = consumer.poll(30)
            assert message is not None, "nothing within 30 s"
            if message.error() is None:
                found.append(message)
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF
                open_partitions -= 1
    return sorted(found, key=lambda message: (message.partition(), message.offset()))


def ids(kafka: Kafka, topic: str) -> list[int]:
    return sorted(json.loads(message.value())["id"] for message in consume(kafka, topic))


@pytest.fixture
def batch(state: str) -> Batch:
    context = Context(root=Path("/project"), state=state)
    return Batch(
        flow="counts", generation="g1", batch_id=0, sink=Path(state).parent.name, output="append", context=context
    )


def test_writer_options_are_what_spark_wants() -> None:
    assert sink(options={"linger.ms": 5}).writer_options(HERE) == {
        "kafka.bootstrap.servers": "a:9092",
        "kafka.linger.ms": "5",
        "kafka.acks": "all",
        "kafka.enable.idempotence": "true",
        "topic": "out",
    }
    assert "topic" not in sink(topic_column="to").writer_options(HERE)


@pytest.mark.parametrize("name", ["acks", "enable.idempotence", "transactional.id", "key.serializer"])
def test_options_that_would_break_a_guarantee_are_refused(name: str) -> None:
    assert refusal(options={name: "0"}) == "kafka-option-refused"


def test_choices() -> None:
    assert sink().guarantee == "at_least_once"
    assert sink(delivery="exactly_once").guarantee == "exactly_once"
    assert (sink().realtime, sink(delivery="exactly_once").realtime) == (True, False)
    assert sink().format.kind() == "json"
    assert sink(format="raw").format.kind() == "raw"
    assert refusal(key_format="json") == "kafka-key"


def test_columns_must_exist() -> None:
    columns = ["order_id", "amount"]
    sink(key=["order_id"]).check_rows(HERE, columns, "append", None)
    for options in ({"key": "oder_id"}, {"headers_column": "h"}, {"topic_column": "t"}):
        with pytest.raises(ProjectError) as caught:
            sink(**options).check_rows(HERE, columns, "append", None)
        assert caught.value.code == "unknown-column"
    with pytest.raises(ProjectError, match="oder_id") as caught:
        sink(key="oder_id").check_rows(HERE, columns, "append", None)
    assert "did you mean 'order_id'?" in str(caught.value.hint)


def test_dotted_columns_are_nested() -> None:
    flat = pa.schema([("id", pa.int64()), ("driver.name", pa.string()), ("driver.car.id", pa.int32())])
    assert nested_schema(flat) == pa.schema(
        [
            ("id", pa.int64()),
            ("driver", pa.struct([("name", pa.string()), ("car", pa.struct([("id", pa.int32())]))])),
        ]
    )


def shared(batch: Batch, tasks: int | None = None, partitions: int = 3, begun: bool = False) -> Sharing:
    return pinned_sharing(batch, tasks, lambda: partitions, lambda writers: begun)


def test_the_number_of_writers_stays_while_the_generation_lasts(batch: Batch) -> None:
    assert shared(batch) == Sharing(3)
    assert shared(batch, partitions=5) == Sharing(3)
    assert shared(replace(batch, generation="g2"), partitions=5) == Sharing(5)
    files = sorted(Path(batch.context.state).rglob("*"))
    assert [file.name for file in files if file.is_file()] == [f"{batch.sink}.json"] * 2


@pytest.mark.parametrize(("tasks", "by_task"), [(1, True), (12, True), (13, False), (None, False)])
def test_tasks_write_their_own_rows_unless_there_are_many_of_them(
    batch: Batch, tasks: int | None, by_task: bool
) -> None:
    assert shared(batch, tasks) == Sharing(3, by_task)


def test_a_batch_ends_in_the_way_in_which_it_began(batch: Batch) -> None:
    assert shared(batch, tasks=2) == Sharing(3, by_task=True)
    assert shared(batch, tasks=5, begun=True) == Sharing(3, by_task=True)
    assert code_of(lambda: shared(batch, begun=True)) == "kafka-sharing"
    assert shared(batch, tasks=2, begun=True) == Sharing(3, by_task=True), "nothing has changed"
    assert shared(batch) == Sharing(3), "nothing is written of this batch yet"
    assert shared(batch, tasks=2) == Sharing(3), "once brought together, always so"
    assert shared(replace(batch, generation="g2"), tasks=2) == Sharing(3, by_task=True)


def rows_of(writer: int, values: list[bytes]) -> pa.RecordBatch:
    columns = {"writer": pa.array([writer] * len(values), pa.int32()), "value": values, "key": [b"k"] * len(values)}
    return pa.RecordBatch.from_pydict(columns)


def test_a_share_can_be_gone_through_again_while_it_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [rows_of(1, []), rows_of(1, [b"a"]), rows_of(1, [b"b"])]
    share = Share(iter(batches))
    assert share.writer == 1
    assert [len(batch) for batch in share] == [1, 1]
    assert [len(batch) for batch in share] == [1, 1]
    monkeypatch.setattr(share_module, "REMEMBERED_BYTES", 1)
    large = Share(iter(batches))
    assert [len(batch) for batch in large] == [1, 1]
    assert not large.can_repeat
    assert Share(iter([])).writer is None
    with pytest.raises(RuntimeError, match="not exact"):
        list(Share(iter([rows_of(1, [b"a"]), rows_of(2, [b"b"])])))


@pytest.mark.service
def test_check_finds_or_makes_the_topic(kafka: Kafka, topic: Topic) -> None:
    name = f"{topic()}-new"
    assert code_of(lambda: sink(brokers=kafka.address, topic=name).check(HERE)) == "topic-missing"
    maker = sink(brokers=kafka.address, topic=name, create={"partitions": 3, "settings": {"cleanup.policy": "compact"}})
    maker.check(HERE)
    maker.check(HERE)
    assert Cluster({"bootstrap.servers": kafka.address}).partitions([name]) == {name: 3}
    assert code_of(lambda: sink(brokers="127.0.0.1:1").check(HERE)) == "broker-unreachable"


# One writer, without Spark: what happens between the first record and the commit.


@pytest.mark.parametrize("topics", [["a", None], [["a"], None], [["a"], []], [["a"], [None]]])
def test_a_row_without_a_topic_is_never_lost(topics: list[Any]) -> None:
    rows = pa.RecordBatch.from_pydict({"value": [b"1", b"2"], "topic": topics})
    with pytest.raises(RuntimeError, match="names no topic"):
        list(share_module._by_topic(rows, "other"))
    assert next(share_module._by_topic(rows.drop_columns(["topic"]), "other"))[0] == "other"


@pytest.fixture
def write(kafka: Kafka, topic: Topic) -> TransactionalWrite:
    name = topic(partitions=2)
    properties = {"bootstrap.servers": kafka.address, "log_level": "0"}
    return TransactionalWrite(properties, f"headrace.flow.g1.{name}", name, batch_id=0)


def run(write: TransactionalWrite, batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for summary in write(batches) for row in summary.to_pylist()]


def values(kafka: Kafka, write: TransactionalWrite) -> list[bytes]:
    return [message.value() for message in consume(kafka, write.topic)]


@pytest.mark.service
def test_a_batch_is_written_once_however_often_it_is_run(kafka: Kafka, write: TransactionalWrite) -> None:
    batch = rows_of(1, [b"a", b"b"])
    assert run(write, iter([batch])) == [{"writer": 1, "rows": 2, "skipped": False, "bytes": 4, "taken": 2}]
    again = {"writer": 1, "rows": 0, "skipped": True, "bytes": 0, "taken": 4}
    assert run(write, iter([batch, batch])) == [again]
    assert run(write, iter([])) == []
    assert run(replace(write, batch_id=7), iter([rows_of(1, [b"c"])]))[0]["rows"] == 1
    assert run(replace(write, batch_id=3), iter([batch]))[0]["skipped"]
    assert values(kafka, write) == [b"a", b"b", b"c"]
    assert run(replace(write, identity=f"{write.identity}.g2"), iter([batch]))[0]["rows"] == 2


@pytest.mark.service
@pytest.mark.parametrize("writer", [0, 1, 6])
def test_a_batch_is_begun_when_any_writer_has_committed(write: TransactionalWrite, writer: int) -> None:
    write = replace(write, partitions=2)
    assert not write.is_begun()
    run(write, iter([rows_of(writer, [b"a"])]))
    assert write.is_begun()
    assert not replace(write, batch_id=1).is_begun()


def failing(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield batch
    yield batch
    raise OSError("the input broke")


@pytest.mark.service
def test_an_attempt_that_fails_half_way_leaves_nothing(kafka: Kafka, write: TransactionalWrite) -> None:
    batch = rows_of(0, [b"a"])
    with pytest.raises(OSError, match="the input broke"):
        run(write, failing(batch))
    assert values(kafka, write) == []
    run(write, iter([batch]))
    assert values(kafka, write) == [b"a"]


_KILLED = """
import os, sys
import pyarrow as pa
from headrace.sinks.kafka import transactions

class Dies(transactions.Producer):
    def commit_transaction(self, *arguments):
        assert self.flush(30) == 0
        os._exit(9)

transactions.Producer = Dies
address, identity, topic = sys.argv[1:]
write = transactions.TransactionalWrite({"bootstrap.servers": address}, identity, topic, 0)
columns = {"writer": pa.array([0, 0], pa.int32()), "value": [b"a", b"b"], "key": [b"k", b"k"]}
list(write(iter([pa.RecordBatch.from_pydict(columns)])))
"""


@pytest.mark.service
def test_a_writer_killed_before_its_commit_is_not_seen_and_its_batch_is_written(
    kafka: Kafka, write: TransactionalWrite
) -> None:
    command = [sys.executable, "-c", _KILLED, kafka.address, write.identity, write.topic]
    assert subprocess.run(command, check=False).returncode == 9
    assert run(write, iter([rows_of(0, [b"a", b"b"])]))[0]["rows"] == 2
    assert values(kafka, write) == [b"a", b"b"]


@pytest.mark.service
def test_a_zombie_is_fenced(kafka: Kafka, write: TransactionalWrite) -> None:
    batch = rows_of(0, [b"a"])

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield batch
        assert run(write, iter([batch, batch]))[0]["rows"] == 2
        yield batch

    assert code_of(lambda: run(write, overtaken())) == "kafka-fenced"
    assert values(kafka, write) == [b"a", b"a"]


@pytest.mark.service
def test_a_producer_that_failed_before_says_why(
    kafka: Kafka, write: TransactionalWrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a record that comes after it was shut out librdkafka says only that there was a fatal error."""
    batch = rows_of(0, [b"a"])

    class KnowsBeforehand(transactions.Producer):  # type: ignore[misc]
        def produce_batch(self, topic: str, messages: list[dict[str, Any]]) -> int:
            if messages[0]["value"] == b"late":
                self.flush()
                with pytest.raises(KafkaException):
                    self.commit_transaction(10)
                raise KafkaException(KafkaError(KafkaError._FATAL))
            return int(super().produce_batch(topic, messages))

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield batch
        assert run(write, iter([batch]))[0]["rows"] == 1
        yield rows_of(0, [b"late"])

    monkeypatch.setattr(transactions, "Producer", KnowsBeforehand)
    assert code_of(lambda: run(write, overtaken())) == "kafka-fenced"
    assert values(kafka, write) == [b"a"]


class CommitsButHearsNothing(transactions.Producer):  # type: ignore[misc]
    """The first commit succeeds at the broker, but its answer is lost."""

    lost = 0

    def commit_transaction(self, *arguments: Any) -> None:
        super().commit_transaction(*arguments)
        if not type(self).lost:
            type(self).lost += 1
            raise transactions.KafkaException(KafkaError(KafkaError._TRANSPORT, "lost"))


@pytest.mark.service
def test_a_commit_whose_answer_is_lost_is_not_repeated(
    kafka: Kafka, write: TransactionalWrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "Producer", CommitsButHearsNothing)
    monkeypatch.setattr(transactions, "CALL_SECONDS", 0.0)
    monkeypatch.setattr(CommitsButHearsNothing, "lost", 0)
    run(write, iter([rows_of(0, [b"a"]), rows_of(0, [b"b"])]))
    assert CommitsButHearsNothing.lost == 1
    assert values(kafka, write) == [b"a", b"b"]


@pytest.mark.service
def test_a_broker_that_stops_for_a_while_is_waited_for(own_kafka: Kafka) -> None:
    own_kafka.create_topic("out", partitions=2)
    write = TransactionalWrite({"bootstrap.servers": own_kafka.address, "log_level": "0"}, "headrace.flow.g1", "out", 0)

    def paused() -> Iterator[pa.RecordBatch]:
        yield rows_of(0, [b"a"])
        own_kafka.pause()
        Timer(2, own_kafka.resume).start()
        yield rows_of(0, [b"b"])

    assert run(write, paused())[0]["rows"] == 2
    assert values(own_kafka, write) == [b"a", b"b"]


@pytest.mark.service
def test_a_full_queue_keeps_the_order(kafka: Kafka, write: TransactionalWrite) -> None:
    narrow = replace(write, properties={**write.properties, "queue.buffering.max.messages": "50"})
    sent = [b"%d" % n for n in range(5000)]
    assert run(narrow, iter([rows_of(0, sent)]))[0]["rows"] == 5000
    assert values(kafka, write) == sent


@pytest.mark.service
def test_what_the_broker_refuses_is_told(kafka: Kafka, write: TransactionalWrite) -> None:
    assert code_of(lambda: run(write, iter([rows_of(0, [b"x" * 2_000_000])]))) == "kafka-refused"
    assert values(kafka, write) == []


# The whole sink, in Spark.


def frame(spark: Any, rows: int) -> Any:
    return spark.range(rows).selectExpr(
        "id", "concat('key-', id % 50) AS name", "named_struct('a', id) AS part", "id % 7 AS `driver.id`"
    )


@pytest.mark.spark
@pytest.mark.service
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_json_with_keys_headers_and_topics(spark: Any, kafka: Kafka, topic: Topic, batch: Batch, delivery: str) -> None:
    first, second = topic(partitions=2), topic()
    rows = frame(spark, 3).selectExpr(
        "*",
        "array(named_struct('key', 'h', 'value', CAST('x' AS BINARY))) AS headers",
        f"CASE WHEN id = 2 THEN '{second}' END AS target",
    )
    routed = {"headers_column": "headers", "topic_column": "target"}
    out = sink(brokers=kafka.address, topic=first, key=["id", "name"], delivery=delivery, **routed)
    out.check_rows(batch.context, rows.columns, "append", pa.schema([(name, pa.string()) for name in rows.columns]))
    out.write_batch(rows, batch)
    elsewhere = consume(kafka, second)
    found = {message.key(): message for message in [*consume(kafka, first), *elsewhere]}
    assert set(found) == {b'{"id":%d,"name":"key-%d"}' % (n, n) for n in range(3)}
    (message,) = elsewhere
    assert json.loads(message.value()) == {"id": 2, "name": "key-2", "part": {"a": 2}, "driver": {"id": 2}}
    assert message.headers() == [("h", b"x")]
    size = sum(len(one.key()) + len(one.value()) for one in found.values())
    assert batch.tally.bytes() == ({("counts", batch.sink): size} if delivery == "exactly_once" else {})


def test_records_of_rows_that_need_no_more_than_names() -> None:
    given = pa.schema([("t", pa.list_(pa.string())), ("k", pa.string()), ("v", pa.string())])
    out = sink(format="raw", topic_column="t", key="k", key_in_value=False, delivery="exactly_once")
    rows = [
        {"t": ["a", "b"], "k": "1", "v": "x"}, {"t": ["a", None], "k": None, "v": None}, {"t": [], "k": "", "v": ""},
        {"t": None, "k": "2", "v": "y"},
    ]  # fmt: skip
    make = out._arrow_records(given)
    assert make is not None
    (made,) = make(iter([pa.RecordBatch.from_pylist(rows, schema=given)]))
    assert made.schema == make.output
    assert made.to_pydict() == {
        "value": [b"x", None, b"", b"y"],
        "key": [b"1", None, b"", b"2"],
        "topic": [["a", "b"], ["a", "out"], ["out"], ["out"]],
    }
    named = given.set(0, pa.field("t", pa.string()))
    make = out._arrow_records(named)
    assert make is not None
    (made,) = make(iter([pa.RecordBatch.from_pylist([{"t": None, "k": "1", "v": "x"}], schema=named)]))
    assert made.column("topic").to_pylist() == ["out"]
    assert not out.accepts_stage(given.set(1, pa.field("k", pa.int64()))), "only Spark knows the text of a number"
    assert not out.accepts_stage(given.append(pa.field("more", pa.string())))
    assert not sink(format="raw", topic_column="t", key="k", key_in_value=False).accepts_stage(given)


@pytest.mark.spark
@pytest.mark.service
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("headers", [False, True])
def test_a_row_goes_to_all_topics_of_a_list(
    spark: Any, kafka: Kafka, topic: Topic, batch: Batch, delivery: str, headers: bool
) -> None:
    first, second = topic(), topic()
    lists = (
        f"CASE id WHEN 0 THEN array('{first}', '{second}') WHEN 1 THEN array('{second}', NULL) WHEN 2 THEN array() END"
    )
    more = (
        ["array(named_struct('key', 'h', 'value', CAST(CAST(id AS STRING) AS BINARY))) AS headers"] if headers else []
    )
    rows = spark.range(4).selectExpr("CAST(id AS STRING) AS value", f"{lists} AS topics", *more)
    options = {"headers_column": "headers"} if headers else {}
    out = sink(brokers=kafka.address, topic=first, format="raw", topic_column="topics", delivery=delivery, **options)
    out.write_batch(rows, batch)
    assert sorted(message.value() for message in consume(kafka, first)) == [b"0", b"1", b"2", b"3"]
    assert sorted(message.value() for message in consume(kafka, second)) == [b"0", b"1"]
    if delivery == "exactly_once":
        assert batch.tally.bytes() == {("counts", batch.sink): 6}
        out.write_batch(rows, batch)
        assert len(consume(kafka, second)) == 2


@pytest.mark.spark
@pytest.mark.service
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_raw_values_and_keys_of_other_types(
    spark: Any, kafka: Kafka, topic: Topic, batch: Batch, delivery: str
) -> None:
    name = topic()
    rows = spark.createDataFrame([(bytearray(b"\xff\x00"),)], "value binary")
    sink(brokers=kafka.address, topic=name, format="raw", key="value", delivery=delivery).write_batch(rows, batch)
    numbered = replace(batch, sink="numbers")
    sink(brokers=kafka.address, topic=name, key="id", delivery=delivery).write_batch(spark.range(1), numbered)
    keyless = replace(batch, sink="keyless")
    sink(brokers=kafka.address, topic=name, delivery=delivery).write_batch(spark.range(1), keyless)
    found = [(message.key(), message.value()) for message in consume(kafka, name)]
    assert found == [(b"\xff\x00", b"\xff\x00"), (b"0", b'{"id":0}'), (None, b'{"id":0}')]


@pytest.mark.spark
@pytest.mark.service
def test_a_key_format_that_spark_cannot_write_itself(spark: Any, kafka: Kafka, topic: Topic, batch: Batch) -> None:
    name = topic()
    out = sink(brokers=kafka.address, topic=name, key="driver.id", key_format="avro", format="avro")
    out.write_batch(frame(spark, 1), batch)
    (message,) = consume(kafka, name)
    assert message.key() == b"\x02\x02\x00"  # two optional fields that are there, and a zero
    assert message.value().endswith(b"\x02\x02\x00")


@pytest.mark.spark
@pytest.mark.service
def test_keys_land_where_java_puts_them_and_keep_their_order(
    spark: Any, kafka: Kafka, topic: Topic, batch: Batch
) -> None:
    places = []
    for delivery in ("at_least_once", "exactly_once"):
        name = topic(partitions=4)
        out = sink(brokers=kafka.address, topic=name, key="name", delivery=delivery)
        out.write_batch(frame(spark, 2000).coalesce(1), batch)
        messages = consume(kafka, name)
        assert len(messages) == 2000
        places.append({message.key(): message.partition() for message in messages})
        orders: dict[bytes, list[int]] = {}
        for message in messages:
            orders.setdefault(message.key(), []).append(json.loads(message.value())["id"])
        assert all(order == sorted(order) for order in orders.values())
    assert places[0] == places[1]
    assert len(set(places[0].values())) == 4


@pytest.mark.spark
def test_shares_are_exact_although_spark_adapts_its_plans(spark: Any) -> None:
    adapting = spark.newSession()
    adapting.conf.set("spark.sql.adaptive.enabled", "true")
    rows = adapting.range(100).selectExpr("id", "CAST(id % 5 AS INT) AS writer").where("writer <> 3")
    placed = rows.repartitionById(16, "writer").mapInArrow(lambda batches: batches, "id bigint, writer int")
    pairs = placed.selectExpr("writer", "spark_partition_id() AS at").distinct().collect()
    assert sorted((row.writer, row.at) for row in pairs) == [(0, 0), (1, 1), (2, 2), (4, 4)]


class DiesBeforeTheLastCommit(TransactionalWrite):
    """The last of four writers dies when its records are sent; with two slots, two others have committed by then."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        def doomed() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield batch
                if batch.column("writer")[0].as_py() == 3:
                    os._exit(9)

        yield from super().__call__(doomed())


@pytest.mark.spark
@pytest.mark.service
def test_a_batch_that_died_half_way_is_completed_not_repeated(
    spark: Any, kafka: Kafka, topic: Topic, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark import cloudpickle

    name = topic(partitions=4)
    out = sink(brokers=kafka.address, topic=name, key="name", delivery="exactly_once")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with monkeypatch.context() as patch:
        patch.setattr(transactions, "TransactionalWrite", DiesBeforeTheLastCommit)
        with pytest.raises(Exception, match="Python worker exited unexpectedly"):
            out.write_batch(frame(spark, 500), batch)
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    admin = kafka.admin()
    admin.create_partitions([NewPartitions(name, 6)])[name].result(30)
    for _ in range(2):
        out.write_batch(frame(spark, 500), batch)
        assert ids(kafka, name) == list(range(500))
    out.write_batch(frame(spark, 500), replace(batch, batch_id=1))
    out.write_batch(frame(spark, 0), replace(batch, batch_id=2))
    out.write_batch(frame(spark, 500), replace(batch, generation="g2"))
    assert Counter(ids(kafka, name)) == dict.fromkeys(range(500), 3)


class DiesInTheLastTask(TransactionalWrite):
    """The last of four tasks dies when its records are sent; with two slots, two others have committed by then."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        def doomed() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield batch
                if transactions._task() == 3:
                    os._exit(9)

        yield from super().__call__(doomed())


# one of those whose partitions Spark reads in another order when a batch runs again
REORDERED = "epsilon"


@pytest.mark.spark
@pytest.mark.service
@pytest.mark.parametrize("by_number", [False, True])
def test_tasks_over_partitions_are_known_again_by_what_they_read(
    spark: Any,
    kafka: Kafka,
    topic: Topic,
    batch: Batch,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    by_number: bool,
) -> None:
    """And if they were known by their numbers, this test would find it."""
    from pyspark import cloudpickle

    source, name = REORDERED, topic(partitions=2)
    if source not in kafka.admin().list_topics(timeout=10).topics:
        kafka.create_topic(source, 4)
        producer = Producer({"bootstrap.servers": kafka.address})
        for number in range(400):
            producer.produce(source, str(number), partition=number % 4)
        assert producer.flush(30) == 0
    out = sink(brokers=kafka.address, topic=name, delivery="exactly_once")
    numbers = []
    known = fixed_tasks.fixed_tasks

    def tasks(rows: Any) -> list[int] | None:
        numbers.append(known(rows))
        return [0, 1, 2, 3] if by_number else numbers[-1]

    monkeypatch.setattr(fixed_tasks, "fixed_tasks", tasks)

    def run() -> None:
        options = {"kafka.bootstrap.servers": kafka.address, "subscribe": source, "startingOffsets": "earliest"}
        rows = (
            spark.readStream.format("kafka")
            .options(**options)
            .load()
            .selectExpr("CAST(CAST(value AS STRING) AS INT) AS id")
        )
        writer = rows.writeStream.foreachBatch(
            lambda rows, number: out.write_batch(rows, replace(batch, batch_id=number))
        )
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with monkeypatch.context() as patch:
        patch.setattr(transactions, "TransactionalWrite", DiesInTheLastTask)
        with pytest.raises(Exception, match="Python worker exited unexpectedly"):
            run()
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert 0 < len(ids(kafka, name)) < 400
    run()
    first, again = numbers
    assert sorted(first) == sorted(again) == [0, 1, 2, 3]
    assert first != again, "Spark has the same order now: take another name"
    assert (ids(kafka, name) == list(range(400))) is not by_number


@pytest.mark.spark
@pytest.mark.service
def test_sparks_own_streaming_writer(spark: Any, kafka: Kafka, topic: Topic, tmp_path: Path) -> None:
    name = topic(partitions=2)
    (tmp_path / "in").mkdir()
    frame(spark, 10).write.mode("append").json(str(tmp_path / "in"))
    rows = spark.readStream.schema("id bigint, name string").json(str(tmp_path / "in"))
    writer = sink(brokers=kafka.address, topic=name, key="name").writer(rows, HERE)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert ids(kafka, name) == list(range(10))
    assert code_of(lambda: sink(delivery="exactly_once").writer(rows, HERE)) == "kafka-realtime-delivery"


@pytest.mark.spark
@pytest.mark.service
def test_login_and_tls_reach_the_writers(spark: Any, kafka: Kafka, topic: Topic, batch: Batch) -> None:
    name = topic()
    login = {"sasl": "SCRAM-SHA-256", "username": "alice", "password": kafka.users["alice"]}
    ways = {kafka.sasl_address: login, kafka.ssl_address: {"ssl": {"ca": str(kafka.certificate)}}}
    for number, (address, security) in enumerate(ways.items()):
        for delivery in ("at_least_once", "exactly_once"):
            out = sink(brokers=address, topic=name, security=security, delivery=delivery)
            out.write_batch(spark.range(1), replace(batch, sink=f"{delivery}-{number}"))
    assert ids(kafka, name) == [0] * 4


@pytest.mark.spark
def test_a_column_the_format_has_no_place_for_is_refused_at_plan_time(spark: Any) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    refuse = sink(format="raw")
    assert code_of(lambda: refuse.check_rows(HERE, schema.names, "append", schema)) == "wrong-column-type"
    sink(format="json", key=["id", "name"]).check_rows(HERE, schema.names, "append", schema)


def rows_of_upserts(messages: list[Any]) -> list[Row]:
    """What a reader has that keeps the last value of each key."""
    last = {message.key(): message.value() for message in messages}
    return [_row(json.loads(value)) for value in last.values() if value is not None]


def rows_of_envelopes(messages: list[Any]) -> list[Row]:
    """What a reader has that does as it is told, and looks whether that can be."""
    rows: dict[bytes, Any] = {}
    for message in messages:
        told = json.loads(message.value())
        assert rows.pop(message.key(), None) == told["before"]
        assert (told["before"] is None, told["after"] is None) == (told["op"] == "c", told["op"] == "d")
        rows |= {message.key(): told["after"]} if told["after"] else {}
    return [_row(row) for row in rows.values()]


def _row(found: dict[str, Any]) -> Row:
    amount = found.get("amount")
    return found["region"], found["id"], None if amount is None else Decimal(str(amount)), found.get("note")


@pytest.mark.spark
@pytest.mark.service
@pytest.mark.parametrize("form", ["upsert", "debezium"])
def test_a_view_is_a_topic_of_changes(spark: Any, kafka: Kafka, topic: Topic, batch: Batch, form: str) -> None:
    name = topic(partitions=2)
    out = sink(brokers=kafka.address, topic=name, changes=form, delivery="exactly_once")
    rows = rows_of_upserts if form == "upsert" else rows_of_envelopes
    live(spark, lambda: out, lambda number: replace(batch, batch_id=number), lambda: rows(consume(kafka, name)))
    messages = consume(kafka, name)
    assert len(messages) == sum(map(len, LIFE)), "each change once"
    assert {message.key() for message in messages} == {
        b'{"region":"%s","id":%d}' % key for key in ((b"eu", 1), (b"us", 1), (b"us", 2), (b"eu|1", 2))
    }
    sources = {json.dumps(json.loads(message.value() or b"{}").get("source")) for message in messages}
    if form == "debezium":
        assert sources == {json.dumps({"flow": "counts", "generation": "g1", "batch": n}) for n in range(len(LIFE))}


@pytest.mark.spark
@pytest.mark.service
def test_forms_of_keys_and_values_of_a_view(spark: Any, kafka: Kafka, topic: Topic, batch: Batch) -> None:
    columns = "id bigint, `who.name` string"
    changes = [(Op.UPDATE, (1, "b"), (1, "a"))]

    def written(of: list[str], **options: Any) -> tuple[Any, Any]:
        name = topic()
        sink(brokers=kafka.address, topic=name, **options).write_changes(
            changes_frame(spark, changes, columns), of, batch
        )
        (message,) = consume(kafka, name)
        return message.key(), message.value()

    assert written(["id"]) == (b"1", b'{"id":1,"who":{"name":"b"}}')
    key, value = written(["id"], changes="debezium")
    assert key == b'{"id":1}'
    assert list(json.loads(value).items())[:2] == [
        ("before", {"id": 1, "who": {"name": "a"}}),
        ("after", {"id": 1, "who": {"name": "b"}}),
    ]
    assert written([], changes="debezium")[0] is None
    changes = [(Op.INSERT, (None, "b"), None)]
    assert written(["id"], key="id", key_format="json") == (b"{}", b'{"who":{"name":"b"}}')
    with pytest.raises(Exception, match=r"error\[kafka-key-null\]"):
        written(["id"])


@pytest.mark.service
def trial(request: pytest.FixtureRequest, folder: Path) -> Trial:
    kafka: Kafka = request.getfixturevalue("kafka")
    name = request.getfixturevalue("topic")(partitions=2)

    def notes() -> list[str]:
        last = {(message.partition(), message.key() or message.offset()): message for message in consume(kafka, name)}
        return [json.loads(message.value())["note"] for message in last.values() if message.value() is not None]

    return Trial(lambda: sink(brokers=kafka.address, topic=name, delivery="exactly_once"), notes)
