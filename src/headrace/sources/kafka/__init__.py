"""`type: kafka`: records of Kafka topics."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from headrace.core.context import Context, ReadContext
from headrace.core.errors import ProjectError
from headrace.core.lazy import lazy_modules
from headrace.core.places import ANY, Location
from headrace.core.positions import Position, Positions
from headrace.core.source import PackedPosition, RecordSource
from headrace.systems.kafka.connection import KafkaConnection, refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.sources.kafka import positions, sample
    from headrace.systems.kafka import cluster as kafka_cluster
    from headrace.systems.kafka.cluster import Cluster
else:
    positions, sample, kafka_cluster = lazy_modules(
        "headrace.sources.kafka.positions", "headrace.sources.kafka.sample", "headrace.systems.kafka.cluster"
    )

_BY_SPARK = "Spark keeps the positions itself, in the flow's checkpoint"
_SPLIT = "it would split a partition among tasks, and its records would lose their order"
_EARLIEST = -2
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
# each poll has a fixed cost: 3 million records took 5.4 to 6.3 s this way, 6.4 to 8.9 s with Kafka's default of 500
_DEFAULTS = {"max.poll.records": "10000"}


# Spark waits for this many records or this much time: it reads none, and keeps its position
_HELD = {"minOffsetsPerTrigger": str(2**62), "maxTriggerDelay": "36500d"}


class KafkaSource(KafkaConnection, RecordSource):
    """Records of one or more topics of one Kafka cluster.

    Delivery: exactly once into replay-safe sinks; records of aborted transactions are never seen. Order: by offset
    within a partition. Scale: one task per partition, never more, since splitting a partition would lose its order.
    """

    type: Literal["kafka"] = "kafka"
    topic: str | list[str] | None = Field(
        None, description="Topic or topics to read.", examples=["orders", ["orders", "refunds"]]
    )
    pattern: str | None = Field(
        None,
        description="Instead of `topic`: a regular expression for whole topic names; new topics are read too.",
        examples=["orders-.*"],
    )
    start: Literal["earliest", "latest"] | datetime | dict[str, dict[int, int]] = Field(
        "earliest",
        description=(
            "Where the first run begins: the oldest record, only new ones, the first record from a time on (no zone "
            "means UTC), or an offset for each partition of each topic (-2 = earliest, -1 = latest). Batch queries "
            "over the topic read all of it when this is `latest`."
        ),
        examples=["latest", "2026-01-31T00:00:00Z", {"orders": {0: 1200, 1: -2}}],
    )
    max_records_per_trigger: int | None = Field(
        None, description="At most this many records per batch; the flow's limit when left out.", gt=0
    )
    fail_on_data_loss: bool = Field(
        True,
        description="Stop when records were deleted before they were read; false continues with those that are left.",
    )
    group_prefix: str | None = Field(
        None, description="Prefix of the consumer groups, for clusters that allow only certain names.", min_length=1
    )

    metadata: ClassVar[dict[str, str]] = {
        "_key": "binary",
        "_topic": "string",
        "_partition": "int",
        "_offset": "bigint",
        "_timestamp": "timestamp",
        "_headers": "array<struct<key:string,value:binary>>",
    }
    realtime: ClassVar[bool] = True
    position: ClassVar[tuple[str, ...]] = ("_topic", "_partition", "_offset")
    refused_options: ClassVar[dict[str, str]] = {
        "auto.offset.reset": "write `start`",
        "enable.auto.commit": _BY_SPARK,
        "group.id": f"{_BY_SPARK}; `group_prefix` names the groups",
        "interceptor.classes": "records are read as they are",
        "isolation.level": "it is always read_committed",
        "maxRecordsPerPartition": _SPLIT,
        "minPartitions": _SPLIT,
        "key.deserializer": "keys are bytes; `_key` can be cast in SQL",
        "value.deserializer": "values are bytes; write a `format`",
    }

    @field_validator("start")
    @classmethod
    def _in_utc(cls, start: Any) -> Any:
        return start.replace(tzinfo=UTC) if isinstance(start, datetime) and start.tzinfo is None else start

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise refused("bad-pattern", f"'{pattern}' is not a regular expression: {error}") from error
        return pattern

    @model_validator(mode="after")
    def _topic_or_pattern(self) -> Self:
        if (not self.topic) == (self.pattern is None):
            raise refused("kafka-topic", "write either `topic` or `pattern`" + (", not both" if self.topic else ""))
        for topic in self.topics:
            if not _TOPIC.fullmatch(topic):
                reason = "letters, digits, '.', '_' and '-', at most 249 of them"
                raise refused("kafka-topic", f"'{topic}' is not the name of a topic, which has {reason}")
        return self

    @property
    def topics(self) -> list[str]:
        """The named topics; none with a pattern."""
        return [self.topic] if isinstance(self.topic, str) else list(self.topic or [])

    @property
    def label(self) -> str:
        return f"kafka {self.pattern or ', '.join(self.topics)} at {self.cluster}"

    @property
    def reads(self) -> str:
        """The topics; every start checks with the cluster that they were not recreated."""
        return f"topics like {self.pattern}" if self.pattern else f"topic {', '.join(sorted(self.topics))}"

    def places(self, context: Context) -> tuple[Location, ...]:
        """The topics; with a pattern, any."""
        system = f"kafka {self.cluster}"
        return tuple(Location(system, topic) for topic in self.topics) or (Location(system, ANY),)

    @property
    def packed_position(self) -> PackedPosition | None:
        """Partition and offset, when there is only one topic."""
        if len(self.topics) != 1:
            return None
        return PackedPosition("_partition", "_offset", fixed=(("_topic", self.topics[0]),))

    def reader_options(self, reading: ReadContext) -> dict[str, str]:
        """These options as options of Spark. Pure, so a test needs no broker."""
        properties = {**_DEFAULTS, **self.java_properties(reading.context)}
        options = {f"kafka.{name}": value for name, value in properties.items()}
        options["kafka.isolation.level"] = "read_committed"
        options["includeHeaders"] = str(_wants_headers(reading)).lower()
        options["groupIdPrefix"] = self.group_prefix or f"headrace-{reading.stream}"
        options["failOnDataLoss"] = str(self.fail_on_data_loss).lower()
        if self.pattern is not None:
            options["subscribePattern"] = self.pattern
        else:
            options["subscribe"] = ",".join(self.topics)
        limit = self.max_records_per_trigger or reading.max_records
        if reading.held:
            options |= _HELD
        elif limit is not None and reading.streaming:
            options["maxOffsetsPerTrigger"] = str(limit)
        return options | self._start_options(reading)

    def _start_options(self, reading: ReadContext) -> dict[str, str]:
        if reading.start is not None and reading.streaming:
            return {"startingOffsets": json.dumps(reading.start, sort_keys=True)}
        if isinstance(self.start, datetime):
            milliseconds = round(self.start.timestamp() * 1000)
            # Without the strategy a partition that has nothing since then would be an error.
            return {"startingTimestamp": str(milliseconds), "startingOffsetsByTimestampStrategy": "latest"}
        if isinstance(self.start, dict):
            by_text = {topic: {str(p): offset for p, offset in sorted(o.items())} for topic, o in self.start.items()}
            return {"startingOffsets": json.dumps(by_text, sort_keys=True)}
        return {"startingOffsets": self.start if reading.streaming else "earliest"}

    def check(self, context: Context) -> None:
        """The cluster answers, accepts the login and has the topics."""
        cluster = self.connect(context)
        partitions = cluster.partitions(self.existing_topics(cluster))
        if isinstance(self.start, dict):
            check_start(self.start, partitions)

    def backfill_obstacle(self) -> str | None:
        """None, unless `start` is set."""
        return None if self.start == "earliest" else "determines where Kafka begins, so `start` must not be set"

    def splits(self, context: Context) -> int:
        """The partitions of all its topics."""
        cluster = self.connect(context)
        return sum(cluster.partitions(self.existing_topics(cluster)).values())

    def positions(self, context: Context) -> Positions:
        """Offsets by topic and partition."""
        return positions.KafkaPositions(self, context)

    def read(self, spark: SparkSession, reading: ReadContext) -> DataFrame:
        """Bytes and metadata, as a stream or up to the present end of the topics."""
        if reading.start is not None and reading.streaming:
            cluster = self.connect(reading.context)
            whole = complete_start(reading.start, cluster.partitions(self.existing_topics(cluster)))
            reading = replace(reading, start=whole)
        reader = spark.readStream if reading.streaming else spark.read
        records = reader.format("kafka").options(**self.reader_options(reading)).load()
        absent = {} if _wants_headers(reading) else {"_headers": f"CAST(NULL AS {self.metadata['_headers']})"}
        return records.selectExpr("value", *(f"{absent.get(name, name[1:])} AS {name}" for name in self.metadata))

    def sample(self, context: Context, limit: int) -> list[bytes]:
        """The newest records, about as many from each partition."""
        cluster = self.connect(context)
        partitions = cluster.partitions(self.existing_topics(cluster))
        return sample.newest_records(self.librdkafka_properties(context), partitions, limit)

    def connect(self, context: Context) -> Cluster:
        """The cluster, once it answers."""
        return kafka_cluster.Cluster(self.librdkafka_properties(context))

    def existing_topics(self, cluster: Cluster) -> list[str]:
        """The named topics, or those that match the pattern now."""
        if self.pattern is None:
            return self.topics
        matching = [name for name in cluster.topics() if re.fullmatch(self.pattern, name)]
        if not matching:
            raise ProjectError(
                "topic-missing",
                f"no topic at {self.cluster} matches the pattern '{self.pattern}'",
                hint=f"topics: {', '.join(cluster.topics()[:20]) or 'none'}",
            )
        return matching


def _wants_headers(reading: ReadContext) -> bool:
    """Two unused headers per record cost 0.9 CPU seconds per million records."""
    return reading.metadata is None or "_headers" in reading.metadata


def complete_start(start: Position, partitions: Mapping[str, int]) -> Position:
    """A start for exactly the existing partitions, as Spark requires; new ones begin at their earliest record."""
    return {
        topic: {str(p): start.get(topic, {}).get(str(p), _EARLIEST) for p in range(count)}
        for topic, count in partitions.items()
    }


def check_start(start: dict[str, dict[int, int]], partitions: dict[str, int]) -> None:
    """Refuse a start without an offset for exactly the existing partitions, as Spark requires."""
    named = {(topic, partition) for topic, offsets in start.items() for partition in offsets}
    existing = {(topic, partition) for topic, count in partitions.items() for partition in range(count)}
    if named == existing:
        return
    missing = ", ".join(f"{topic}:{partition}" for topic, partition in sorted(existing - named)[:10])
    extra = ", ".join(f"{topic}:{partition}" for topic, partition in sorted(named - existing)[:10])
    problems = [f"no offset for {missing}" if missing else "", f"there is no {extra}" if extra else ""]
    raise ProjectError(
        "kafka-start",
        f"`start` must name every partition: {'; '.join(filter(None, problems))}",
        hint="-2 stands for the earliest offset, -1 for the latest",
    )
