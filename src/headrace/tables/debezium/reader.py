"""Reads the topics of one cluster. A position is, by table, its topic and the next offset of each partition:

`{"orders": {"topic": "shop.orders", "id": "…", "offsets": {"0": 12}}}`. While a topic is first read, `until` has the
ends that it had at the start; `skipped` counts messages that were skipped.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError
from headrace.core.positions import Position
from headrace.core.tables import CapturedBatch, RowChange, TableReader, TableShape
from headrace.systems.kafka.cluster import Cluster, client, cluster_error
from headrace.tables.debezium.messages import BadMessageError
from headrace.tables.debezium.rows import NoChange, TableRows
from headrace.tables.debezium.shape import consumer_properties

if TYPE_CHECKING:
    from headrace.tables.debezium import DebeziumTable

_MOST = 10_000
_LOOK_AGAIN_SECONDS = 30.0
_logger = logging.getLogger(__name__)


@dataclass
class _FollowedTopic:
    """One table, and the position in its topic."""

    source: DebeziumTable
    rows: TableRows
    id: str
    offsets: dict[int, int]
    until: dict[int, int] | None
    skipped: int = 0

    @property
    def whole(self) -> bool:
        """Whether the end is reached that the topic had at the start."""
        return self.until is not None and all(self.offsets[p] >= end for p, end in self.until.items())

    def position(self) -> dict[str, Any]:
        """The position after what was read."""
        position: dict[str, Any] = {"topic": self.source.topic, "id": self.id, "offsets": _texts(self.offsets)}
        if self.until is not None:
            position["until"] = _texts(self.until)
        if self.skipped:
            position["skipped"] = self.skipped
        return position


class DebeziumReader(TableReader):
    """One consumer with assigned partitions. It checks regularly for new partitions and topics that were recreated."""

    def __init__(
        self,
        tables: Mapping[str, DebeziumTable],
        shapes: Mapping[str, TableShape],
        after: Position | None,
        context: Context,
    ) -> None:
        properties = next(iter(tables.values())).librdkafka_properties(context)
        self._address = properties["bootstrap.servers"]
        self._cluster = Cluster(properties)
        topics = [table.topic for table in tables.values()]
        counts, ids = self._cluster.partitions(topics), self._cluster.identities(topics)
        starts, ends = self._cluster.starts(counts), self._cluster.ends(counts)
        self._begins: set[str] = set()
        self._ends: set[str] = set()
        self._tables: dict[str, _FollowedTopic] = {}
        self._shapes: dict[str, TableShape] = {}
        for name, table in tables.items():
            shape = _with_declared(table, shapes[name])
            rows = TableRows(
                name,
                shape,
                table.messages(context),
                declared=table.columns is not None,
                timestamps=table.timestamps,
                decimals=table.decimals,
                unavailable=table.unavailable,
            )
            known = (after or {}).get(name)
            topic = table.topic
            if shape != shapes[name]:  # newly declared columns must be read from earlier events
                known, self._shapes[name] = None, shape
            if known is None or known["topic"] != topic or "until" in known:
                self._tables[name] = _FollowedTopic(table, rows, ids[topic], dict(starts[topic]), dict(ends[topic]))
                self._begins.add(name)
            else:
                offsets = _resumed(table, known, ids[topic], starts[topic], ends[topic])
                self._tables[name] = _FollowedTopic(table, rows, ids[topic], offsets, None, known.get("skipped", 0))
        self._by_topic = {table.source.topic: name for name, table in self._tables.items()}
        self._changes: list[RowChange] = []
        self._moved = False
        self._at: int | None = None
        self._ready: deque[CapturedBatch] = deque()
        self._failure: ProjectError | None = None
        self._errors: list[KafkaError] = []
        self._looked = time.monotonic()
        self._consumer = client(Consumer, {**consumer_properties(properties), "error_cb": self._errors.append})
        self._consumer.assign(
            [
                TopicPartition(one.source.topic, partition, offset)
                for one in self._tables.values()
                for partition, offset in one.offsets.items()
            ]
        )

    def read(self, seconds: float) -> CapturedBatch | None:
        """The next changes; a message that cannot be parsed raises an error after all before it are returned."""
        if not self._ready:
            if self._failure is not None:
                raise self._failure
            self._look_again()
            # wait for the first message only, then take all available: waiting for a full batch would delay the first
            for message in [*self._consumer.consume(1, timeout=seconds), *self._consumer.consume(_MOST, timeout=0)]:
                self._take(message)
                if self._failure is not None:
                    break
            self._raise_broken()
            self._close_batch()
        return self._ready.popleft() if self._ready else None

    def confirm(self, position: Position) -> None:
        """Nothing: the topic has its own retention."""

    def lag(self) -> int | None:
        """Offsets up to the ends of the topics, as last reported by the brokers."""
        behind = 0
        for table in self._tables.values():
            for partition, offset in table.offsets.items():
                part = TopicPartition(table.source.topic, partition)
                high = (self._consumer.get_watermark_offsets(part, cached=True) or (0, -1))[1]
                if high < 0:
                    return None  # not reported yet
                behind += max(0, high - offset)
        return behind

    def close(self) -> None:
        self._consumer.close()

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise self._explained(error, message)
        name = self._by_topic[str(message.topic())]
        table = self._tables[name]
        partition, offset = int(message.partition() or 0), int(message.offset() or 0)
        if error is not None:  # the end, after markers of transactions
            table.offsets[partition] = max(table.offsets[partition], offset)
            return
        try:
            self._apply(name, table, message.key(), message.value())
        except BadMessageError as reason:
            self._set_aside(table, partition, offset, reason)
            if self._failure is not None:
                return
        table.offsets[partition] = offset + 1
        self._moved = True

    def _apply(self, name: str, table: _FollowedTopic, key: Any, value: Any) -> None:
        event = table.rows.event(value)
        grown = table.rows.grow(event)
        if grown is not None:  # earlier changes have the earlier columns
            self._flush()
            self._shapes[name] = grown
        change = table.rows.change(event, key)
        if change is NoChange.TRUNCATED:
            self._flush()
            self._begins.add(name)
            if table.until is None:
                self._ends.add(name)
            self._flush()
        elif isinstance(change, RowChange):
            self._changes.append(change)
        if event is not None and event.at is not None:
            self._at = max(self._at or 0, event.at)

    def _set_aside(self, table: _FollowedTopic, partition: int, offset: int, reason: BadMessageError) -> None:
        place = f"topic '{table.source.topic}', partition {partition}, offset {offset}"
        if table.source.on_error == "skip":
            table.skipped += 1
            _logger.warning("skipped a message that cannot be parsed: %s: %s", place, reason)
            return
        self._failure = ProjectError(
            "message-malformed",
            f"a message of {place} cannot be parsed: {reason}",
            hint="fix `columns`, `format` or the key of the table; `on_error: skip` skips such messages",
        )

    def _close_batch(self) -> None:
        for name, table in self._tables.items():
            if table.whole:
                table.until = None
                self._ends.add(name)
        self._flush()

    def _flush(self) -> None:
        if not (self._moved or self._changes or self._begins or self._ends or self._shapes):
            return
        self._ready.append(
            CapturedBatch(
                position={name: table.position() for name, table in self._tables.items()},
                changes=self._changes,
                begins=frozenset(self._begins),
                ends=frozenset(self._ends),
                shapes=self._shapes,
                at=None if self._at is None else datetime.fromtimestamp(self._at / 1000, UTC),
            )
        )
        self._changes, self._shapes, self._at, self._moved = [], {}, None, False
        self._begins.clear()
        self._ends.clear()

    def _raise_broken(self) -> None:
        """Raise an error when all brokers are unavailable: the client reports it by a callback and waits forever."""
        for error in self._errors:
            if error.code() == KafkaError._ALL_BROKERS_DOWN:
                raise cluster_error(error, self._address)
        self._errors.clear()

    def _explained(self, error: KafkaError, message: Message) -> ProjectError:
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            return _lost(str(message.topic()), int(message.partition() or 0))
        return cluster_error(error, self._address, message.topic())

    def _look_again(self) -> None:
        if time.monotonic() - self._looked < _LOOK_AGAIN_SECONDS:
            return
        counts = self._cluster.partitions(self._by_topic)
        ids = self._cluster.identities(self._by_topic)
        new: list[TopicPartition] = []
        for topic, count in counts.items():
            table = self._tables[self._by_topic[topic]]
            if ids[topic] != table.id:
                raise _recreated(topic)
            for partition in range(count):
                if partition not in table.offsets:
                    table.offsets[partition] = 0
                    new.append(TopicPartition(topic, partition, 0))
        if new:
            self._consumer.incremental_assign(new)
        self._looked = time.monotonic()


def _with_declared(table: DebeziumTable, shape: TableShape) -> TableShape:
    """The shape in the log, followed by newly declared columns."""
    declared = table.declared
    new = [] if declared is None else [column for column in declared if column.name not in shape.columns.names]
    return TableShape(pa.schema([*shape.columns, *new]), shape.key) if new else shape


def _texts(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def _resumed(
    table: DebeziumTable, known: Mapping[str, Any], id: str, starts: Mapping[int, int], ends: Mapping[int, int]
) -> dict[int, int]:
    """Where to resume. Raises a ProjectError when the topic was recreated or lacks unread changes."""
    offsets = {int(p): offset for p, offset in known["offsets"].items()}
    if known["id"] != id or any(offset > ends.get(p, -1) for p, offset in offsets.items()):
        raise _recreated(table.topic)
    for partition, start in starts.items():
        if offsets.setdefault(partition, 0) < start:
            raise _lost(table.topic, partition)
    return offsets


def _recreated(topic: str) -> ProjectError:
    return ProjectError(
        "topic-recreated",
        f"topic '{topic}' was deleted and recreated since the table has read it: its positions are invalid",
        hint="let the connector write a snapshot to it, and give the table another name: it starts with that",
        exit_code=Exit.CONFLICT,
    )


def _lost(topic: str, partition: int) -> ProjectError:
    return ProjectError(
        "table-changes-lost",
        f"changes in partition {partition} of topic '{topic}' were deleted before they were read",
        hint="let the connector write a snapshot, and give the table another name: it starts with that; a topic "
        "of changes should be kept longer, or compacted (cleanup.policy)",
        exit_code=Exit.CONFLICT,
    )
