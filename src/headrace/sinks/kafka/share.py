"""The rows of one writer, and how they are handed to a producer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Producer

REMEMBERED_BYTES = 64 * 1024 * 1024
_WAIT_FOR_ROOM = 0.1


class Share:
    """The Arrow batches of one writer, which can be gone through again as long as they are few enough to remember."""

    def __init__(self, batches: Iterator[pa.RecordBatch], writer: int | None = None) -> None:
        """`writer` is for rows that do not say whose they are."""
        self.taken = 0
        """How many rows have come so far."""
        self._rest = self._counted(batches)
        self._remembered: list[pa.RecordBatch] = []
        self._bytes = 0
        self.can_repeat = True
        first = next(self._rest, None)
        self.writer: int | None = None
        if first is not None:
            self.writer = first.column("writer")[0].as_py() if writer is None else writer
            self._remember(first)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._remembered:
            self._check(batch)
            yield batch
        for batch in self._rest:
            self._remember(batch)
            self._check(batch)
            yield batch

    def _counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.taken += batch.num_rows
            if batch.num_rows:
                yield batch

    def drain(self) -> None:
        """Read the remaining rows, so that the worker can be reused."""
        for _ in self._rest:
            self.can_repeat = False

    def _remember(self, batch: pa.RecordBatch) -> None:
        self._bytes += batch.nbytes
        if self._bytes > REMEMBERED_BYTES and self._remembered:
            self.can_repeat = False
            self._remembered.clear()
        if self.can_repeat:
            self._remembered.append(batch)

    def _check(self, batch: pa.RecordBatch) -> None:
        if "writer" not in batch.schema.names:
            return
        writers = batch.column("writer").unique().to_pylist()
        if writers != [self.writer]:
            raise RuntimeError(f"rows of writers {writers} came to writer {self.writer}: the shares are not exact")


def send_all(producer: Producer, topic: str, share: Share) -> tuple[int, int]:
    """Queue all rows of a writer, each for all its topics; how many records they are, and the bytes of these.

    Rows of a topic keep their order; the end of the transaction reports whether they arrived.
    """
    records = size = 0
    for batch in share:
        messages, sizes = _messages(batch), _sizes(batch)
        send = _send_one_by_one if "headers" in batch.schema.names else _send_together
        for name, rows in _by_topic(batch, topic):
            send(producer, name, [messages[row] for row in rows.to_pylist()])
            records += len(rows)
            size += pc.sum(sizes.take(rows)).as_py()
    return records, size


def _messages(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Each row as what the producer takes, once for all its topics."""
    pairs = zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
    messages: list[dict[str, Any]] = [{"key": key, "value": value} for key, value in pairs]
    if "headers" in batch.schema.names:
        for message, headers in zip(messages, batch.column("headers").to_pylist(), strict=True):
            message["headers"] = [(header["key"], header["value"]) for header in headers] if headers else None
    return messages


def _sizes(batch: pa.RecordBatch) -> pa.Array:
    lengths = (pc.fill_null(pc.binary_length(batch.column(name)), 0).cast(pa.int64()) for name in ("key", "value"))
    return pc.add(*lengths)


def _by_topic(batch: pa.RecordBatch, topic: str) -> Iterator[tuple[str, pa.Array]]:
    """The topics of rows, and the places of those for each."""
    every = pa.array(range(batch.num_rows))
    if "topic" not in batch.schema.names:
        yield topic, every
        return
    named = batch.column("topic")
    if pa.types.is_list(named.type):
        names, rows = named.flatten(), pc.list_parent_indices(named)
    else:
        names, rows = named, every
    if names.null_count or len(rows.unique()) < len(named):
        raise RuntimeError("a row names no topic, and would be lost")
    for name in names.unique().to_pylist():
        yield name, rows.filter(pc.equal(names, name))


def _send_together(producer: Producer, topic: str, messages: list[dict[str, Any]]) -> None:
    """One call for many rows: a third less work than a call per row."""
    while messages:
        queued = producer.produce_batch(topic, messages)
        messages = _refused(messages, queued)
        producer.poll(_WAIT_FOR_ROOM if messages else 0)


def _refused(messages: list[dict[str, Any]], queued: int) -> list[dict[str, Any]]:
    """Those for which there was no room: all after the first such one, else rows would overtake each other."""
    left = messages[queued:]
    reasons = [message.pop("_error", None) for message in messages]
    if any(reasons[:queued]) or not all(reasons[queued:]):
        raise RuntimeError("the producer queued rows out of their order")
    for reason in reasons[queued:]:
        if reason.code() != KafkaError._QUEUE_FULL:
            raise KafkaException(reason)
    return left


def _send_one_by_one(producer: Producer, topic: str, messages: list[dict[str, Any]]) -> None:
    for message in messages:
        while True:
            try:
                producer.produce(topic, **message)
                break
            except BufferError:
                producer.poll(_WAIT_FOR_ROOM)
