"""The columns and the key of a table, from the newest messages of its topic."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.tables import TableShape
from headrace.systems.kafka.cluster import DEADLINE, Cluster, client, cluster_error
from headrace.tables.debezium.connect import columns_of
from headrace.tables.debezium.messages import BadMessageError, DebeziumEvent, MessageParser, MessagePart

if TYPE_CHECKING:
    from headrace.tables.debezium import DebeziumTable

# the newest messages may be compacted or have no columns: then older ones are read
_BACK = (100, 10_000, 2**62)


def consumer_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties of a consumer that starts at given offsets and commits nothing."""
    return {
        **properties,
        "group.id": "headrace-tables",  # required by librdkafka; nothing is committed to it
        "enable.auto.commit": "false",
        "enable.partition.eof": "true",
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
    }


def shape_of(table: DebeziumTable, context: Context) -> TableShape:
    """The declared columns, else those of the newest event with a schema; the key is that of the messages."""
    declared = table.declared
    newest = _newest(table, context)
    if newest is None and declared is None:
        raise _unknown(table, "has no change event yet")
    if newest is None:
        return TableShape(declared)
    event, key = newest
    if declared is None and event.row_schema is None:
        raise _unknown(table, "carries no schema")
    columns = declared if declared is not None else _columns(table, event)
    names = [] if key is None else _names(key)
    return TableShape(columns, tuple(names) if set(names) <= set(columns.names) else ())


def _columns(table: DebeziumTable, event: DebeziumEvent) -> pa.Schema:
    try:
        return columns_of(event.row_schema or {})
    except (ValueError, KeyError, TypeError) as error:
        raise _unknown(table, f"has a schema that cannot be parsed: {error}") from error


def _unknown(table: DebeziumTable, why: str) -> ProjectError:
    return ProjectError(
        "table-columns-unknown",
        f"topic '{table.topic}' {why}, so the table's columns are not known",
        hint="declare them: columns: id bigint, amount decimal(10,2)",
    )


def _names(key: MessagePart) -> list[str]:
    if key.schema is not None:
        return [field["field"] for field in key.schema.get("fields", ())]
    return list(key.payload) if isinstance(key.payload, dict) else []


def _newest(table: DebeziumTable, context: Context) -> tuple[DebeziumEvent, MessagePart | None] | None:
    properties = table.librdkafka_properties(context)
    cluster = Cluster(properties)
    partitions = cluster.partitions([table.topic])
    starts, ends = cluster.starts(partitions)[table.topic], cluster.ends(partitions)[table.topic]
    messages = table.messages(context)
    with closing(client(Consumer, consumer_properties(properties))) as consumer:
        for back in _BACK:
            begins = {p: max(starts[p], end - back) for p, end in ends.items() if end > starts[p]}
            consumer.assign([TopicPartition(table.topic, p, offset) for p, offset in begins.items()])
            event = _telling(_read(consumer, len(begins), table.cluster), messages)
            if event is not None:
                return event
    return None


def _telling(read: Iterator[Message], messages: MessageParser) -> tuple[DebeziumEvent, MessagePart | None] | None:
    """The newest event of a row among messages; among many, one of the first."""
    best: tuple[int, Message, DebeziumEvent] | None = None
    for number, message in enumerate(read):
        event = _event(message, messages)
        at = message.timestamp()[1]
        if event is not None and (best is None or at >= best[0]):
            best = (at, message, event)
        if best is not None and number >= _BACK[0]:
            break
    if best is None:
        return None
    key = best[1].key()
    try:
        return best[2], None if key is None else messages.part(bytes(key))
    except BadMessageError:
        return best[2], None


def _event(message: Message, messages: MessageParser) -> DebeziumEvent | None:
    value = message.value()
    try:
        event = None if value is None else messages.event(bytes(value))
    except BadMessageError:
        return None
    return event if event is not None and event.op in "crud" else None


def _read(consumer: Consumer, partitions: int, cluster: str) -> Iterator[Message]:
    """Messages, until the time is up."""
    until = time.monotonic() + DEADLINE
    while partitions and time.monotonic() < until:
        for message in consumer.consume(500, timeout=0.2):
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                partitions -= 1
            else:
                raise cluster_error(error, cluster) from KafkaException(error)
