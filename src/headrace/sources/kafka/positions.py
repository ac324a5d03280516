"""Positions in Kafka topics: offsets by topic and partition, with the semantics of kafka-consumer-groups."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError
from headrace.core.positions import (
    AtOffset,
    AtTime,
    Current,
    Earliest,
    Explicit,
    Latest,
    Offsets,
    Position,
    Positions,
    Reached,
    ShiftBy,
    Split,
    SplitScope,
    Target,
)
from headrace.systems.kafka.cluster import Cluster, client, cluster_error

if TYPE_CHECKING:
    from headrace.sources.kafka import KafkaSource

_PEEK_SECONDS = 5.0
_EARLIEST, _LATEST = -2, -1


class KafkaPositions(Positions):
    """One admin client and one consumer, created when they are first needed."""

    comparable = True

    def __init__(self, source: KafkaSource, context: Context) -> None:
        super().__init__(source.label)
        self._source = source
        self._context = context
        self._known: Cluster | None = None
        self._consumer: Consumer | None = None

    def of_checkpoint(self, end: Any) -> Position | None:
        """Spark writes `{"topic": {"0": 12}}`; the topics identify the source."""
        if not isinstance(end, dict) or not end or not all(isinstance(part, dict) for part in end.values()):
            return None
        return end if all(self._reads(topic) for topic in end) else None

    def reached(self, end: Any) -> Reached | None:
        """The offsets of the topics that are read; those of other topics are ignored."""
        if not isinstance(end, dict):
            return None
        own = {topic: parts for topic, parts in end.items() if isinstance(parts, dict) and self._reads(topic)}
        return {f"{topic}:{p}": (offset,) for topic, parts in own.items() for p, offset in parts.items()} or None

    def moved(self, end: Any, to: Any) -> Any:
        """The same topics, with the offsets of another position."""
        return {topic: {**parts, **to.get(topic, {})} for topic, parts in end.items()}

    def resolve(self, target: Target, current: Position | None, scope: SplitScope) -> Position | None:
        """An offset for every partition, never before its start or after its end."""
        partitions = self._partitions()
        low, high = self._cluster.starts(partitions), self._cluster.ends(partitions)
        at = as_offsets(current) if current is not None else {}
        moved = self._wanted(target, at, low, high)
        begun = self._wanted(self._own_start(), {}, low, high)
        offsets: Offsets = {topic: {} for topic in high}
        for topic, parts in high.items():
            for p, end in parts.items():
                stays = at.get(topic, {}).get(p, begun[topic][p])
                offsets[topic][p] = min(max(moved[topic][p] if scope.holds(topic, p) else stays, low[topic][p]), end)
        return as_position(offsets)

    def measure(self, position: Position | None) -> list[Split]:
        """Start, end and lag of every partition."""
        partitions = self._partitions()
        low, high = self._cluster.starts(partitions), self._cluster.ends(partitions)
        at = as_offsets(position) if position is not None else {}
        unread = {
            (topic, p): max(offset, low[topic][p])
            for topic, parts in at.items()
            for p, offset in parts.items()
            if p in high.get(topic, {}) and offset < high[topic][p]
        }
        waiting = self._waiting(unread)
        return [
            Split(topic, p, low[topic][p], end, offset, _lag_s(offset, waiting.get((topic, p), 0.0)))
            for topic, parts in sorted(high.items())
            for p, end in sorted(parts.items())
            for offset in (at.get(topic, {}).get(p),)
        ]

    def identities(self) -> dict[str, str]:
        """The ids of the topics in Kafka."""
        return self._cluster.identities(self._topics())

    def group(self, project: str, flow: str) -> str | None:
        """The consumer group that shows the position of the flow."""
        return f"{self._source.group_prefix or 'headrace'}.{project}.{flow}"

    def publish(self, group: str, position: Position) -> None:
        """Commit the offsets to the group."""
        self._cluster.commit(group, as_offsets(position))

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = self._known = None

    @property
    def _cluster(self) -> Cluster:
        if self._known is None:
            self._known = self._source.connect(self._context)
        return self._known

    def _reads(self, topic: str) -> bool:
        if self._source.pattern is not None:
            return re.fullmatch(self._source.pattern, topic) is not None
        return topic in self._source.topics

    def _topics(self) -> list[str]:
        if self._source.pattern is not None:
            self._cluster.refresh()
        return self._source.existing_topics(self._cluster)

    def _partitions(self) -> dict[str, int]:
        return self._cluster.partitions(self._topics())

    def _wanted(self, target: Target, at: Offsets, low: Offsets, high: Offsets) -> Offsets:
        """The target in every partition, not yet limited to its bounds."""
        if isinstance(target, AtTime):
            return self._since(target.moment, high)
        return {
            topic: {
                p: _moved(target, at.get(topic, {}).get(p), low[topic][p], end, f"{topic}:{p}") for p, end in of.items()
            }
            for topic, of in high.items()
        }

    def _since(self, moment: datetime, high: Offsets) -> Offsets:
        partitions = {topic: len(parts) for topic, parts in high.items()}
        offsets = self._cluster.at(partitions, round(moment.timestamp() * 1000))
        return {
            topic: {p: high[topic][p] if offset < 0 else offset for p, offset in parts.items()}
            for topic, parts in offsets.items()
        }

    def _own_start(self) -> Target:
        """Where a new flow begins."""
        match self._source.start:
            case dict() as offsets:
                return Explicit(offsets)
            case datetime() as moment:
                return AtTime(moment)
            case edge:
                return Latest() if edge == "latest" else Earliest()

    def _waiting(self, unread: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], float | None]:
        """The age in seconds of the record at each of these offsets; None when the cluster did not answer."""
        if not unread:
            return {}
        if self._consumer is None:
            self._consumer = client(Consumer, _consumer_settings(self._source.librdkafka_properties(self._context)))
        try:
            times = _peek(self._consumer, unread)
        except KafkaException as error:
            raise cluster_error(error.args[0], self._source.cluster) from error
        now = time.time()
        return {
            part: None if part not in times else 0.0 if times[part] is None else max(0.0, now - times[part] / 1000)
            for part in unread
        }


def as_offsets(position: Position) -> Offsets:
    """A position with partitions as numbers instead of texts."""
    return {topic: {int(p): offset for p, offset in parts.items()} for topic, parts in position.items()}


def as_position(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Offsets as Spark writes them."""
    return {topic: {str(p): offset for p, offset in sorted(of.items())} for topic, of in sorted(offsets.items())}


def _moved(target: Target, at: int | None, low: int, high: int, where: str) -> int:
    """A target that does not depend on records, in one partition."""
    match target:
        case Earliest():
            return low
        case Latest():
            return high
        case AtOffset(offset):
            return offset
        case Current():
            return high if at is None else at  # as Kafka's own tool does
        case ShiftBy(records):
            if at is None:
                raise ProjectError(
                    "no-position",
                    f"the flow has no position in {where} yet, so it cannot be shifted",
                    hint="use --to-earliest, --to-latest or --to-offset, or run the flow first",
                    exit_code=Exit.CONFLICT,
                )
            return at + records
        case Explicit(offsets):
            topic, _, p = where.rpartition(":")
            given = offsets.get(topic, {}).get(int(p))
            if given is None:
                return low if at is None else at
            return low if given == _EARLIEST else high if given == _LATEST else given
        case AtTime():
            raise AssertionError("times are asked of the cluster")


def _lag_s(offset: int | None, waiting: float | None) -> float | None:
    return None if offset is None else waiting


def _consumer_settings(properties: Mapping[str, str]) -> dict[str, str]:
    return {
        **properties,
        "group.id": "headrace-lag",  # required by librdkafka; nothing is committed to it
        "enable.auto.commit": "false",
        "enable.partition.eof": "true",
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        # one record of each partition is needed, not a megabyte
        "fetch.message.max.bytes": "16384",
        "queued.max.messages.kbytes": "1024",
        "fetch.wait.max.ms": "50",
    }


def _peek(consumer: Consumer, starts: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], Any]:
    """The time of the first record from each offset on, in milliseconds; None where only markers are left."""
    times: dict[tuple[str, int], int | None] = {}
    consumer.assign([TopicPartition(topic, p, offset) for (topic, p), offset in starts.items()])
    until = time.monotonic() + _PEEK_SECONDS
    try:
        while len(times) < len(starts) and time.monotonic() < until:
            for message in consumer.consume(100, timeout=0.1):
                part, error = (message.topic() or "", message.partition() or 0), message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                if part not in times:
                    times[part] = None if error is not None else message.timestamp()[1]
                    consumer.pause([TopicPartition(*part)])
    finally:
        consumer.unassign()
    return times
