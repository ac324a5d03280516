"""One writer's share of a batch as one Kafka transaction, run in a Python worker.

The transaction holds the records and, as the committed offset of a consumer group, the number of the next batch. A
batch that is run again finds that number and is skipped; a batch that died half way was never visible. A second
writer with the same transactional id fences the first, so of two that run at once only one can commit.

A writer without rows does nothing at all: run again it has no rows either, so it needs no mark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from headrace.core.errors import ProjectError
from headrace.core.runtime.lazy import lazy_modules
from headrace.core.schema import to_ddl
from headrace.sinks.kafka.share import Share, send_all
from headrace.systems.kafka.cluster import NOT_ALLOWED, client, cluster_error

if TYPE_CHECKING:
    import pyspark
else:
    pyspark = lazy_modules("pyspark")

ATTEMPTS = 3
CALL_SECONDS = 60.0
ABORT_SECONDS = 10.0
# a transaction costs about as much as bringing some thousand rows to another task
WRITERS_PER_PARTITION = 4
_SUMMARY_SCHEMA = pa.schema(
    [
        ("writer", pa.int32()),
        ("rows", pa.int64()),
        ("skipped", pa.bool_()),
        ("bytes", pa.int64()),
        ("taken", pa.int64()),
    ]
)
SUMMARY = to_ddl(_SUMMARY_SCHEMA)
_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_PASSING = (
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._WAIT_COORD,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
)
_DEFAULTS = {
    # Room for a large share; a writer that died is not waited for: the next one with its id ends its transaction.
    "transaction.timeout.ms": "300000",
    "partitioner": "murmur2_random",  # a key's partition is the one the Java client would choose
    "queue.buffering.max.kbytes": "65536",  # the default of 1 GB per writer is more than a worker has
    "linger.ms": "50",
}
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class TransactionalWrite:
    """Writes the shares of a batch; called by Spark with the Arrow batches of one share.

    Rows have `value`, `key` and perhaps `headers` and `topic`; and `writer`, unless `tasks` maps each Spark partition
    to a writer. Pickled to the workers.
    """

    properties: Mapping[str, str] = field(repr=False)  # may hold a password
    identity: str
    topic: str
    batch_id: int
    partitions: int = 1
    """Marks per consumer group: one per partition, so at most the number of partitions of the topic."""
    tasks: tuple[int, ...] | None = None
    """The number of each task as a writer, where tasks write their own rows."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        share = Share(batches, None if self.tasks is None else self.tasks[_task()])
        if share.writer is None:
            return
        sent = self._insist_on(share)
        rows, size = sent or (0, 0)
        columns = [[share.writer], [rows], [sent is None], [size], [share.taken]]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _SUMMARY_SCHEMA, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_SUMMARY_SCHEMA)

    def _insist_on(self, share: Share) -> tuple[int, int] | None:
        """How many rows and bytes were written, None when they already were.

        Every attempt starts from scratch: it also checks whether the one before was committed after all.
        """
        for attempts_left in reversed(range(ATTEMPTS)):
            try:
                return self._attempt(share)
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                if reason.code() in _FENCED:
                    raise _fenced(self._transactional_id(share)) from error
                if not attempts_left or not share.can_repeat or not _may_pass(reason):
                    raise cluster_error(reason, self.properties["bootstrap.servers"], self.topic) from error
        raise AssertionError("the last attempt returns or raises")

    def _transactional_id(self, share: Share) -> str:
        return f"{self.identity}.{share.writer}"

    def _attempt(self, share: Share) -> tuple[int, int] | None:
        producer = client(Producer, self._producer_settings(share))
        group, partition = divmod(share.writer or 0, self.partitions)
        with closing(client(Consumer, self._consumer_settings(group))) as consumer:
            insist(producer.init_transactions)
            mark = TopicPartition(self.topic, partition)
            (committed,) = insist(lambda seconds: consumer.committed([mark], seconds))
            if committed.offset > self.batch_id:
                share.drain()
                return None
            producer.begin_transaction()
            try:
                rows, size = send_all(producer, self.topic, share)
                mark.offset = self.batch_id + 1
                holder = consumer.consumer_group_metadata()
                insist(lambda seconds: producer.send_offsets_to_transaction([mark], holder, seconds))
                insist(producer.commit_transaction)
            except Exception as error:  # whatever it was: readers must not wait for this transaction until it times out
                try:
                    producer.abort_transaction(ABORT_SECONDS)
                except KafkaException as cause:
                    if _says_nothing(error):
                        raise cause from error
                raise
            return rows, size

    def is_begun(self) -> bool:
        """Whether any writer has committed its share of the batch."""
        marks = [TopicPartition(self.topic, partition) for partition in range(self.partitions)]
        for group in range(WRITERS_PER_PARTITION):
            with closing(client(Consumer, self._consumer_settings(group))) as consumer:
                found = insist(partial(consumer.committed, marks))
            if any(mark.offset > self.batch_id for mark in found):
                return True
        return False

    def _producer_settings(self, share: Share) -> dict[str, str | bool]:
        return {
            **_DEFAULTS,
            **self.properties,
            "transactional.id": self._transactional_id(share),
            "delivery.report.only.error": True,  # a record that fails fails its transaction; nothing else is reported
        }

    def _consumer_settings(self, group: int) -> dict[str, str]:
        """Without the options of the producer: this consumer only reads and commits the mark."""
        connection = ("bootstrap.servers", "log_level", "security.protocol", "client.", "sasl.", "ssl.", "socket.")
        shared = {name: value for name, value in self.properties.items() if name.startswith(connection)}
        return {
            **shared,
            "group.id": f"{self.identity}.{group}" if group else self.identity,
            "enable.auto.commit": "false",
            "isolation.level": "read_committed",
        }


def _task() -> int:
    task = pyspark.TaskContext.get()
    assert task is not None, "rows without a writer are written by tasks"
    return task.partitionId()


def insist(call: Callable[[float], Answer]) -> Answer:
    """Repeat a call while Kafka reports transient errors, for at most CALL_SECONDS."""
    until = time.monotonic() + CALL_SECONDS
    while True:
        try:
            return call(max(1.0, until - time.monotonic()))
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            passing = reason.retriable() or reason.code() in _PASSING
            if not passing or reason.fatal() or reason.txn_requires_abort() or time.monotonic() > until:
                raise
        time.sleep(0.05)  # a coordinator does not report when it has moved or loaded


def _says_nothing(error: Exception) -> bool:
    """Whether an error only reports that the producer has failed before; its next call reports the cause."""
    return isinstance(error, KafkaException) and error.args[0].code() == KafkaError._FATAL


def _may_pass(reason: KafkaError) -> bool:
    """Whether a new transaction may succeed where this one failed. A new producer also cures fatal errors."""
    passing = reason.retriable() or reason.txn_requires_abort() or reason.fatal() or reason.code() in _PASSING
    return passing and reason.code() not in NOT_ALLOWED


def _fenced(transactional_id: str) -> ProjectError:
    return ProjectError(
        "kafka-fenced",
        f"Kafka shut out '{transactional_id}', which wrote nothing: another writer took its place or it took too long",
        hint="stop the second run of this flow; if there is none, raise transaction.timeout.ms in `options`",
    )
