"""A log in two Kafka topics of one partition each: `….commits` lists the segments, `….changes` holds their changes.

A segment is one transaction over both. The transactional id of the producer is the name of the topic: a new writer
fences the one before, so the newest commit is certain when the next one is written. Tasks stage changes in the log's
folder, as for a log in files; the driver sends them. Changes that were cut off are deleted from their topic; the
newest commit stays, since it lists the batches so far.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from headrace.core.endpoints import Endpoint
from headrace.core.files.state_files import StatePath
from headrace.core.log_topics import LogTopics
from headrace.log._commits import Marks, SegmentCommit
from headrace.log.log import Log, LogCutError, Mark, Segment, SegmentPart, segment_of
from headrace.log.parts import FileStaging, batches_of
from headrace.systems.kafka.cluster import Cluster, client, cluster_error

_CHUNK_BYTES = 900_000
_SECONDS = 30.0
_APART_SECONDS = 0.2
# changes are deleted when they are cut off, never by Kafka
_KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


class KafkaLog(Log):
    """The log of one version of an endpoint, in two topics."""

    def __init__(self, folder: StatePath, endpoint: Endpoint, id: str, topics: LogTopics) -> None:
        self.endpoint, self.id = endpoint, id
        self._parts = folder / "parts"
        self._topics = topics
        name = f"{topics.prefix}.{endpoint.name}.v{endpoint.version}.{id}"
        self._commits, self._changes = f"{name}.commits", f"{name}.changes"
        self._known: dict[int, tuple[SegmentCommit, int]] = {}
        """The commits read so far, each with its offset."""
        self._next = 0
        """The offset to read commits from."""
        self._reader: Any = None
        self._producer: Any = None
        self._own: SegmentCommit | None = None
        """The last commit of this producer, which Kafka confirms before readers see it."""
        self._lock = threading.Lock()

    def end(self) -> int:
        """Reads all new commits."""
        with self._lock:
            self._read_commits()
            return max(self._known, default=0)

    def begin(self) -> int:
        """The first position whose changes exist."""
        with self._lock:
            self._read_commits()
            return self._begin()

    def after(self, position: int, limit: int = 64) -> list[Segment]:
        """Reads all new commits."""
        with self._lock:
            self._read_commits()
            end = max(self._known, default=0)
            if position < end and position + 1 < self._begin():
                raise self._cut_off(self._begin() - 1)
            last = min(end, position + limit)
            return [self._known[number][0].segment for number in range(position + 1, last + 1)]

    def changes(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        """Reads part by part."""
        for part in segment.parts:
            yield from batches_of(self._read_part(part, segment.position), part)

    def staging(self, mark: Mark) -> FileStaging:
        """In the log's folder: only the driver writes to Kafka."""
        return FileStaging(self._parts, self.endpoint.changes, mark)

    def has(self, mark: Mark) -> bool:
        """Whether a batch is committed already."""
        with self._lock:
            return self._newest()[1].has(mark)

    def commit_parts(self, mark: Mark, parts: Sequence[SegmentPart]) -> Segment | None:
        """Send the staged changes and their commit in one transaction."""
        if not parts:
            return None
        with self._lock:
            deadline = time.monotonic() + _SECONDS
            while True:
                try:
                    return self._commit(mark, parts)
                except KafkaException as error:
                    # most often another writer has started. The batch may be committed all the same: the next attempt
                    # tells, once a new producer has settled what this one left open
                    self._producer = self._own = None
                    if time.monotonic() > deadline:
                        raise self._failed(error) from error
                time.sleep(random.uniform(0.0, _APART_SECONDS))  # noqa: S311  # or two fence each other for ever

    def cut(self, position: int) -> None:
        """Delete the changes, and all commits but the newest."""
        from confluent_kafka.admin import AdminClient

        with self._lock:
            self._read_commits()
            end = max(self._known, default=0)
            if not 0 < position <= end:
                raise ValueError(f"the log has positions up to {end}, and is to be cut off at {position}")
            if position < self._begin():
                return
            # not to the end of the topic: there may be changes of a segment that is not yet committed
            first, chunks = _place(self._known[position][0].segment.parts[-1])
            commits = self._known[min(position + 1, end)][1]
            admin = client(AdminClient, self._topics.properties)
            bounds = [TopicPartition(self._changes, 0, first + chunks), TopicPartition(self._commits, 0, commits)]
            for bound in bounds:  # in this order: a commit without its changes counts as cut off
                try:
                    admin.delete_records([bound])[bound].result(_SECONDS)
                except KafkaException as error:
                    raise self._failed(error) from error

    def make(self) -> None:
        """Create the topics, unless they exist."""
        cluster = Cluster(self._topics.properties)
        for topic in (self._changes, self._commits):
            cluster.create(topic, 1, self._topics.replication, _KEPT)

    def remove(self) -> None:
        from confluent_kafka.admin import AdminClient

        gone = client(AdminClient, self._topics.properties).delete_topics([self._changes, self._commits])
        for answer in gone.values():
            with suppress(KafkaException):  # deleted already
                answer.result(_SECONDS)

    def _commit(self, mark: Mark, parts: Sequence[SegmentPart]) -> Segment | None:
        producer = self._producer_here()
        end, marks = self._newest()
        if marks.has(mark):
            return None
        producer.begin_transaction()
        sent = [self._send(producer, part) for part in parts]
        segment = segment_of(end + 1, mark, sent)
        commit = SegmentCommit(segment, marks.with_(mark))
        producer.produce(self._commits, commit.to_bytes(), partition=0)
        producer.commit_transaction(_SECONDS)
        self._own = commit
        for part in parts:
            (self._parts / part.name).unlink(missing_ok=True)
        return segment

    def _send(self, producer: Any, part: SegmentPart) -> SegmentPart:
        """Send one part in chunks; its name becomes its place in the topic."""
        content = (self._parts / part.name).read_bytes()
        offsets: list[int] = []
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                failures.append(error)
            else:
                offsets.append(message.offset())

        for at in range(0, len(content), _CHUNK_BYTES):
            producer.produce(self._changes, content[at : at + _CHUNK_BYTES], partition=0, on_delivery=delivered)
        try:
            producer.flush(_SECONDS)
        except SystemError as error:  # how a fatal error in a delivery callback is raised
            raise KafkaException(KafkaError(KafkaError._FATAL)) from error
        if failures:
            raise KafkaException(failures[0])
        chunks = -(-len(content) // _CHUNK_BYTES)
        # between them there may be records of another writer, which is fenced by now
        if len(offsets) != chunks or max(offsets) - min(offsets) != chunks - 1:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return replace(part, name=f"{min(offsets)}+{chunks}")

    def _producer_here(self) -> Any:
        if self._producer is None:
            producer = client(
                Producer,
                {
                    **self._topics.properties,
                    "transactional.id": self._commits,
                    "compression.type": "none",  # they exist
                    "linger.ms": "0",
                    "message.max.bytes": "1000000",
                },
            )
            producer.init_transactions(_SECONDS)
            self._producer = producer
        return self._producer

    def _newest(self) -> tuple[int, Marks]:
        self._read_commits()
        end = max(self._known, default=0)
        if self._own is not None and self._own.segment.position > end:
            return self._own.segment.position, self._own.marks
        return (end, self._known[end][0].marks) if end else (0, Marks())

    def _begin(self) -> int:
        """The first position all of whose changes exist."""
        low, _ = self._offsets(self._changes)
        positions = [n for n, (commit, _) in self._known.items() if _place(commit.segment.parts[0])[0] >= low]
        return min(positions, default=max(self._known, default=0) + 1)

    def _read_commits(self) -> None:
        """Read the commits since the last call."""
        low, high = self._offsets(self._commits)
        self._known = {n: known for n, known in self._known.items() if known[1] >= low}
        first = max(low, self._next)
        if first < high:
            records, self._next = self._read(self._commits, first, high)
            for message in records:
                commit = SegmentCommit.from_bytes(message.value(), f"{self._commits} at {message.offset()}")
                self._known[commit.segment.position] = commit, message.offset()

    def _read_part(self, part: SegmentPart, position: int) -> bytes:
        first, chunks = _place(part)
        with self._lock:
            if first < self._offsets(self._changes)[0]:
                raise self._cut_off(position)
            # the end of a transaction reaches one topic before the other
            deadline = time.monotonic() + _SECONDS
            while time.monotonic() < deadline:
                records, _ = self._read(self._changes, first, first + chunks)
                if len(records) == chunks:
                    return b"".join(message.value() for message in records)
        raise self._failed(KafkaException(KafkaError(KafkaError._TIMED_OUT)))

    def _offsets(self, topic: str) -> tuple[int, int]:
        """The first offset of a topic, and the one after the last."""
        try:
            low, high = self._consumer().get_watermark_offsets(TopicPartition(topic, 0), _SECONDS)
        except KafkaException as error:
            raise self._failed(error) from error
        return low, high

    def _read(self, topic: str, first: int, end: int) -> tuple[list[Any], int]:
        """The committed records from one offset to before another, up to an open transaction; and where to continue.

        Markers of transactions are skipped."""
        consumer, records = self._consumer(), []
        consumer.assign([TopicPartition(topic, 0, first)])
        deadline, place = time.monotonic() + _SECONDS, first
        while place < end and time.monotonic() < deadline:
            message = consumer.poll(0.1)
            error = None if message is None else message.error()
            if message is None:
                continue
            if error is None:
                records += [message] if message.offset() < end else []
                place = message.offset() + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                return records, message.offset()
            else:
                raise self._failed(KafkaException(error))
        return records, place

    def _consumer(self) -> Any:
        if self._reader is None:
            self._reader = client(
                Consumer,
                {
                    **self._topics.properties,
                    "group.id": "headrace.log",  # required by the client; nothing is subscribed or committed
                    "enable.auto.commit": "false",
                    "enable.partition.eof": "true",
                    "isolation.level": "read_committed",
                    "auto.offset.reset": "error",
                    "fetch.wait.max.ms": "10",
                },
            )
        return self._reader

    def _cut_off(self, position: int) -> LogCutError:
        return LogCutError(f"the log of {self.endpoint.name} v{self.endpoint.version} begins after {position}")

    def _failed(self, error: KafkaException) -> Exception:
        return cluster_error(error.args[0], self._address, self._commits)

    @property
    def _address(self) -> str:
        return self._topics.properties["bootstrap.servers"]


def _place(part: SegmentPart) -> tuple[int, int]:
    """The first offset of a part, and its number of records."""
    first, _, chunks = part.name.partition("+")
    return int(first), int(chunks)
