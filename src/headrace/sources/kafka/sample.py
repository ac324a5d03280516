"""A few records of a topic, read without Spark and without committing to a consumer group."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from headrace.systems.kafka.cluster import DEADLINE, client, cluster_error


def newest_records(properties: Mapping[str, str], partitions: Mapping[str, int], limit: int) -> list[bytes]:
    """Up to `limit` values, the newest of each partition, as many as can be read in time."""
    settings = {
        **properties,
        "group.id": "headrace-sample",  # required by librdkafka; nothing is committed to it
        "enable.auto.commit": "false",
        "enable.partition.eof": "true",
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
    }
    until = time.monotonic() + DEADLINE
    with closing(client(Consumer, settings)) as consumer:
        try:
            starts = _starts(consumer, partitions, limit)
            consumer.assign(starts)
            return _read(consumer, len(starts), limit, until)
        except KafkaException as error:
            raise cluster_error(error.args[0], properties["bootstrap.servers"]) from error


def _starts(consumer: Consumer, partitions: Mapping[str, int], limit: int) -> list[TopicPartition]:
    """Where to begin in each partition that is not empty."""
    every = [TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)]
    share = -(-limit // max(1, len(every)))
    starts = []
    for part in every:
        low, high = consumer.get_watermark_offsets(part, timeout=DEADLINE)
        if high > low:
            # twice the share: some offsets are transaction markers
            starts.append(TopicPartition(part.topic, part.partition, max(low, high - 2 * share)))
    return starts


def _read(consumer: Consumer, open_partitions: int, limit: int, until: float) -> list[bytes]:
    values: list[bytes] = []
    while open_partitions and len(values) < limit and time.monotonic() < until:
        for message in consumer.consume(min(limit, 1000), timeout=0.2):
            error = message.error()
            if error is None:
                values += _value(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                open_partitions -= 1
            else:
                raise KafkaException(error)
    return values[:limit]


def _value(message: Message) -> list[bytes]:
    value = message.value()
    return [] if value is None else [value if isinstance(value, bytes) else str(value).encode()]
