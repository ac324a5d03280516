from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pydantic import ValidationError

from headrace.core.context import Context, ReadContext
from headrace.core.errors import ProjectError
from headrace.sources.kafka import KafkaSource, check_start
from headrace.testing.services import Kafka

LIVE = ReadContext(Context(Path("/project"), "/state"), stream="orders")
AS_IT_STANDS = ReadContext(Context(Path("/project"), "/state"), stream="orders", streaming=False)
Topic = Callable[..., str]


def source(**options: Any) -> KafkaSource:
    return KafkaSource.model_validate({"brokers": "a:9092", **options})


def refusal(**options: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        source(**options)
    return caught.value.errors()[0]["type"]


def produce(kafka: Kafka, topic: str, messages: Iterable[dict[str, Any]], **settings: Any) -> None:
    properties = {name.replace("_", "."): value for name, value in settings.items()}
    producer = Producer({"bootstrap.servers": kafka.address, "log_level": 0, **properties})
    for message in messages:
        producer.produce(topic, **message)
    assert producer.flush(30) == 0


def values(spark: Any, kafka: Kafka, context: ReadContext = AS_IT_STANDS, **options: Any) -> list[bytes]:
    rows = source(brokers=kafka.address, **options).read(spark, context)
    return [bytes(row.value) for row in rows.orderBy("_topic", "_partition", "_offset").collect()]


def drain(rows: Any, checkpoint: Path) -> list[list[Any]]:
    """The batches of a stream up to its present end."""
    batches: list[list[Any]] = []
    query = (
        rows.writeStream.foreachBatch(lambda batch, _: batches.append(batch.collect()))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return batches


def test_reader_options_are_what_spark_wants() -> None:
    options = source(topic=["orders", "refunds"], options={"fetch.min.bytes": 1}).reader_options(LIVE)
    assert options == {
        "kafka.bootstrap.servers": "a:9092",
        "kafka.fetch.min.bytes": "1",
        "kafka.max.poll.records": "10000",
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
        "groupIdPrefix": "headrace-orders",
        "failOnDataLoss": "true",
        "subscribe": "orders,refunds",
        "startingOffsets": "earliest",
    }


def test_limits_and_groups() -> None:
    context = ReadContext(Context(Path(), ""), stream="s", max_records=500)
    assert source(topic="t").reader_options(context)["maxOffsetsPerTrigger"] == "500"
    own = source(topic="t", max_records_per_trigger=7, group_prefix="team-a", fail_on_data_loss=False)
    options = own.reader_options(context)
    assert (options["maxOffsetsPerTrigger"], options["groupIdPrefix"]) == ("7", "team-a")
    assert options["failOnDataLoss"] == "false"


def test_a_partition_is_never_split() -> None:
    options = source(topic="t").reader_options(LIVE)
    assert not {"minPartitions", "maxRecordsPerPartition"} & options.keys()
    assert refusal(topic="t", min_partitions=8) == "extra_forbidden"


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("latest", {"startingOffsets": "latest"}),
        ({"t": {1: 5, 0: -2}}, {"startingOffsets": '{"t": {"0": -2, "1": 5}}'}),
        (
            "2026-01-31T00:00:00",
            {"startingTimestamp": "1769817600000", "startingOffsetsByTimestampStrategy": "latest"},
        ),
        (
            "2026-01-31T07:00:00+07:00",
            {"startingTimestamp": "1769817600000", "startingOffsetsByTimestampStrategy": "latest"},
        ),
    ],
)
def test_start_positions(start: object, expected: dict[str, str]) -> None:
    options = source(topic="t", start=start).reader_options(LIVE)
    assert {name: value for name, value in options.items() if name.startswith("starting")} == expected


def test_the_topic_as_it_stands_is_read_whole_although_the_stream_starts_at_its_end() -> None:
    assert source(topic="t", start="latest").reader_options(AS_IT_STANDS)["startingOffsets"] == "earliest"


@pytest.mark.parametrize(
    "name", ["group.id", "isolation.level", "enable.auto.commit", "key.deserializer", "auto.offset.reset"]
)
def test_options_that_would_break_a_guarantee_are_refused(name: str) -> None:
    assert refusal(topic="t", options={name: "x"}) == "kafka-option-refused"


def test_topic_or_pattern() -> None:
    assert refusal() == "kafka-topic"
    assert refusal(topic="t", pattern="t.*") == "kafka-topic"
    assert refusal(topic=[]) == "kafka-topic"
    assert refusal(topic=["t", "a b"]) == "kafka-topic"
    assert refusal(pattern="t(") == "bad-pattern"
    assert source(pattern="t.*").reader_options(LIVE)["subscribePattern"] == "t.*"


def test_every_partition_needs_a_start() -> None:
    check_start({"t": {0: 1, 1: 2}}, {"t": 2})
    with pytest.raises(ProjectError, match="no offset for t:1; there is no u:0") as caught:
        check_start({"t": {0: 1}, "u": {0: 1}}, {"t": 2})
    assert caught.value.code == "kafka-start"


def test_metadata_and_label_say_nothing_secret() -> None:
    login = {"sasl": "PLAIN", "username": "al", "password": "hush-hush"}
    secured = source(topic="t", security=login)
    assert "hush" not in f"{secured!r} {secured.label}"
    assert set(secured.position) <= secured.metadata.keys()


@pytest.mark.service
def test_check_names_what_is_missing(kafka: Kafka, topic: Topic) -> None:
    name = topic(partitions=2)
    source(brokers=kafka.address, topic=name, start={name: {0: 0, 1: -2}}).check(LIVE.context)
    source(brokers=kafka.address, pattern=f"{name[:-1]}.").check(LIVE.context)
    wrong: dict[str, dict[str, Any]] = {
        "topic-missing": {"topic": f"{name}x"},
        "kafka-start": {"topic": name, "start": {name: {0: 0}}},
        "broker-unreachable": {"topic": name, "brokers": "127.0.0.1:1"},
    }
    for code, options in wrong.items():
        with pytest.raises(ProjectError) as caught:
            source(**{"brokers": kafka.address, **options}).check(LIVE.context)
        assert caught.value.code == code
    with pytest.raises(ProjectError, match="matches the pattern") as caught:
        source(brokers=kafka.address, pattern="nothing-.*").check(LIVE.context)
    assert caught.value.code == "topic-missing"


@pytest.mark.service
def test_a_wrong_password_is_refused_without_telling_it(kafka: Kafka, topic: Topic) -> None:
    login = {"sasl": "SCRAM-SHA-256", "username": "alice", "password": "hush-hush"}
    with pytest.raises(ProjectError) as caught:
        source(brokers=kafka.sasl_address, topic=topic(), security=login).check(LIVE.context)
    assert caught.value.code == "kafka-authentication"
    assert "hush" not in str(caught.value)


@pytest.mark.service
def test_sample_is_the_newest_records(kafka: Kafka, topic: Topic) -> None:
    name = topic(partitions=2)
    assert source(brokers=kafka.address, topic=name).sample(LIVE.context, 10) == []
    messages: list[dict[str, Any]] = [{"value": b"%d" % n, "partition": n % 2} for n in range(1000)]
    produce(kafka, name, [*messages, {"value": None, "partition": 0}])
    sampled = source(brokers=kafka.address, topic=name).sample(LIVE.context, 10)
    assert len(sampled) == 10
    assert all(int(value) >= 900 for value in sampled)
    assert len(source(brokers=kafka.address, topic=name).sample(LIVE.context, 5000)) == 1000


@pytest.mark.spark
@pytest.mark.service
def test_records_with_all_their_metadata(spark: Any, kafka: Kafka, topic: Topic) -> None:
    name = topic(partitions=2, retention_ms="-1")  # else the broker may delete what is as old as this
    headers = [("trace", b"\x00\x01"), ("empty", None)]
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    message = {"value": b"\xff\x00", "key": b"k", "partition": 1, "headers": headers}
    produce(kafka, name, [{**message, "timestamp": int(at.timestamp() * 1000)}, {"value": None, "partition": 0}])
    rows = source(brokers=kafka.address, topic=name).read(spark, AS_IT_STANDS)
    assert dict(rows.dtypes) == {"value": "binary", **KafkaSource.metadata}
    nothing, row = rows.orderBy("_partition").collect()
    assert (bytes(row.value), bytes(row._key), row._topic, row._partition, row._offset) == (
        b"\xff\x00",
        b"k",
        name,
        1,
        0,
    )
    assert row._timestamp.timestamp() == at.timestamp()
    assert [(header.key, header.value) for header in row._headers] == headers
    assert (nothing.value, nothing._key, nothing._headers) == (None, None, None)
    unused = replace(AS_IT_STANDS, metadata=("_key",))
    bare = source(brokers=kafka.address, topic=name).read(spark, unused)
    assert dict(bare.dtypes) == dict(rows.dtypes)
    assert [row._headers for row in bare.collect()] == [None, None]


@pytest.mark.spark
@pytest.mark.service
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records(spark: Any, kafka: Kafka, topic: Topic, codec: str) -> None:
    name = topic()
    expected = [b"compressible " * 20 + b"%d" % n for n in range(50)]
    produce(kafka, name, ({"value": value} for value in expected), compression_type=codec, linger_ms=50)
    assert values(spark, kafka, topic=name) == expected


@pytest.mark.spark
@pytest.mark.service
def test_aborted_records_are_not_seen(spark: Any, kafka: Kafka, topic: Topic, tmp_path: Path) -> None:
    name = topic()
    settings = {"bootstrap.servers": kafka.address, "transactional.id": name, "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(30)
    for value, end in ((b"a", producer.commit_transaction), (b"b", producer.abort_transaction)) * 2:
        producer.begin_transaction()
        producer.produce(name, value)
        assert producer.flush(30) == 0
        end(30)
    assert values(spark, kafka, topic=name) == [b"a", b"a"]
    stream = source(brokers=kafka.address, topic=name).read(spark, LIVE)
    assert [bytes(row.value) for batch in drain(stream, tmp_path) for row in batch] == [b"a", b"a"]


@pytest.mark.spark
@pytest.mark.service
def test_start_positions_on_a_broker(spark: Any, kafka: Kafka, topic: Topic, tmp_path: Path) -> None:
    name = topic(partitions=2, retention_ms="-1")
    start = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
    hourly = [{"value": b"%d" % n, "timestamp": (start + n * 3600) * 1000, "partition": 0} for n in range(6)]
    produce(kafka, name, hourly)
    at_three = {"topic": name, "start": "2026-01-01T03:00:00Z"}
    assert values(spark, kafka, **at_three) == [b"3", b"4", b"5"]
    assert values(spark, kafka, topic=name, start={name: {0: 4, 1: -2}}) == [b"4", b"5"]
    cases: dict[str, list[bytes]] = {
        "2026-01-01T03:00:00Z": [b"3", b"4", b"5"],
        "2027-01-01T00:00:00Z": [],
        "earliest": [b"%d" % n for n in range(6)],
    }
    for number, (begin, expected) in enumerate(cases.items()):
        stream = source(brokers=kafka.address, topic=name, start=begin).read(spark, LIVE)
        found = [bytes(row.value) for batch in drain(stream, tmp_path / str(number)) for row in batch]
        assert sorted(found) == expected


@pytest.mark.spark
@pytest.mark.service
def test_latest_means_what_comes_after_the_first_start(spark: Any, kafka: Kafka, topic: Topic, tmp_path: Path) -> None:
    name = topic()
    produce(kafka, name, [{"value": b"old"}])
    stream = source(brokers=kafka.address, topic=name, start="latest").read(spark, LIVE)
    assert [row for batch in drain(stream, tmp_path) for row in batch] == []
    produce(kafka, name, [{"value": b"new"}])
    assert [bytes(row.value) for batch in drain(stream, tmp_path) for row in batch] == [b"new"]


@pytest.mark.spark
@pytest.mark.service
def test_batches_are_limited_and_a_partition_keeps_its_order(
    spark: Any, kafka: Kafka, topic: Topic, tmp_path: Path
) -> None:
    name = topic(partitions=2)
    produce(kafka, name, ({"value": b"%d" % n, "partition": n % 2} for n in range(100)))
    stream = source(brokers=kafka.address, topic=name, max_records_per_trigger=30).read(spark, LIVE)
    batches = [batch for batch in drain(stream, tmp_path) if batch]
    assert [len(batch) for batch in batches] == [30, 30, 30, 10]
    for partition in (0, 1):
        seen = [int(row.value) for batch in batches for row in batch if row._partition == partition]
        assert seen == list(range(partition, 100, 2))


@pytest.mark.spark
@pytest.mark.service
@pytest.mark.parametrize("listener", ["sasl", "ssl"])
def test_spark_connects_with_login_and_tls(spark: Any, kafka: Kafka, topic: Topic, listener: str) -> None:
    name = topic()
    produce(kafka, name, [{"value": b"safe"}])
    login = {"sasl": "SCRAM-SHA-512", "username": "alice", "password": kafka.users["alice"]}
    security = login if listener == "sasl" else {"ssl": {"ca": str(kafka.certificate)}}
    address = kafka.sasl_address if listener == "sasl" else kafka.ssl_address
    rows = source(brokers=address, topic=name, security=security).read(spark, AS_IT_STANDS)
    assert [bytes(row.value) for row in rows.collect()] == [b"safe"]
