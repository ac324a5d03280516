from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace.sinks.kafka.fixed_tasks import fixed_tasks
from headrace.testing.services import Kafka

pytestmark = pytest.mark.spark
Topic = Callable[..., str]


def found(rows: Any, folder: Path) -> list[Any]:
    """What is told in the batches of a stream."""
    told: list[Any] = []

    def look(rows: Any, number: int) -> None:
        told.append(fixed_tasks(rows))
        rows.write.format("noop").mode("overwrite").save()

    writer = rows.writeStream.foreachBatch(look)
    query = writer.option("checkpointLocation", str(folder / f"{len(list(folder.iterdir()))}")).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return told


@pytest.mark.service
def test_partitions_of_kafka_are_known_by_their_names(spark: Any, kafka: Kafka, topic: Topic, tmp_path: Path) -> None:
    first, second = topic(partitions=3), topic(partitions=2)
    producer = Producer({"bootstrap.servers": kafka.address})
    for name, partition in [(first, 0), (first, 1), (first, 2), (second, 0), (second, 1)]:
        producer.produce(name, b"x", partition=partition)
    assert producer.flush(30) == 0

    def read(*names: str) -> Any:
        options = {"kafka.bootstrap.servers": kafka.address, "subscribe": ",".join(names)}
        return spark.readStream.format("kafka").options(startingOffsets="earliest", **options).load().select("value")

    (one,) = found(read(first).where("value IS NOT NULL"), tmp_path)
    assert sorted(one) == [0, 1, 2]
    (both,) = found(read(first, second), tmp_path)
    assert sorted(both) == [0, 1, 2, 3, 4]
    (union,) = found(read(first).unionAll(read(second)), tmp_path)
    assert sorted(union[:3]) + sorted(union[3:]) in ([0, 1, 2, 3, 4], [2, 3, 4, 0, 1])
    assert found(read(first).unionAll(read(first)), tmp_path) == [None], "two tasks have the same name"
    assert found(read(first).repartition(2), tmp_path) == [None]
    assert found(read(first).coalesce(2), tmp_path) == [None]


def test_parts_of_the_state_are_known_by_their_numbers(spark: Any, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "3")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"n": 1}\n{"n": 2}\n{"n": 1}\n')
    rows = session.readStream.schema("n bigint").json(str(tmp_path / "in"))
    (tmp_path / "checkpoints").mkdir()
    assert found(rows, tmp_path / "checkpoints") == [None], "which files a task reads is not written down"
    assert found(rows.dropDuplicates(), tmp_path / "checkpoints") == [[0, 1, 2]]
    told = found(rows.dropDuplicates().where("n > 1").selectExpr("n + 1 AS m"), tmp_path / "checkpoints")
    assert told == [[0, 1, 2]]
    assert found(rows.repartition(3, "n"), tmp_path / "checkpoints") == [None], "not after a mere shuffle"
    assert found(rows.dropDuplicates().coalesce(1), tmp_path / "checkpoints") == [None]
    assert fixed_tasks(session.range(3)) is None
