"""Rows of one task for Redis, in pipelines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import redis

from headrace.core.errors import ProjectError
from headrace.sinks._chunks import chunks
from headrace.sinks._refused import Report
from headrace.sinks.redis.entries import RedisEntry
from headrace.sinks.redis.merge import Merging, document_of, fields_of
from headrace.systems.redis.client import RedisClient

_MOST_BYTES = 8 << 20


@dataclass(frozen=True)
class RedisWrite:
    """Writes the rows of one task; called by Spark with Arrow batches. Pickled to the workers.

    Columns: `key`, `gone`, `value` and, for hashes, `field_N` for each of `fields`, or the map `fields`.
    """

    client: RedisClient
    fields: tuple[str, ...] | None
    """The fields of hashes; none when all of them are in the map, None when keys hold something else."""
    ttl_ms: int | None
    batch_size: int
    report: Report
    merging: Merging | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for portion in chunks(self._entries(batches), lambda one: one.size, self.batch_size, _MOST_BYTES):
                self._write(portion)
        finally:
            summary = list(self.report.batches())
        yield from summary

    def _entries(self, batches: Iterator[pa.RecordBatch]) -> Iterator[RedisEntry]:
        number = 0
        for batch in batches:
            values = batch.column("value").to_pylist()
            hashes = None if self.fields is None else self._hashes(batch, self.fields)
            gone = batch.column("gone").to_pylist()
            for index, key in enumerate(batch.column("key").to_pylist()):
                if key is None:
                    self.report.refused(number, "no-key", "a column of `key` is null", values[index])
                elif gone[index]:
                    yield RedisEntry(number, key, None)
                elif hashes is not None:
                    yield RedisEntry(number, key, hashes[index])
                else:
                    yield from self._document(number, key, values[index])
                number += 1

    def _hashes(self, batch: pa.RecordBatch, fields: tuple[str, ...]) -> list[dict[str, bytes | None]]:
        if not fields:
            return [dict(entries or ()) for entries in batch.column("fields").to_pylist()]
        columns = [batch.column(f"field_{index}").to_pylist() for index in range(len(fields))]
        return [dict(zip(fields, row, strict=True)) for row in zip(*columns, strict=True)]

    def _document(self, number: int, key: str, value: bytes) -> Iterator[RedisEntry]:
        if self.merging is None:
            yield RedisEntry(number, key, value)
            return
        try:
            yield RedisEntry(number, key, fields_of(value))
        except ValueError as error:
            self.report.refused(number, "not-an-object", str(error), value)

    def _write(self, portion: Sequence[RedisEntry]) -> None:
        """One transaction per portion, so that no reader sees a partly written hash."""
        try:
            refused = self.client.call(lambda connection: self._send(connection, portion))
        except redis.ResponseError as error:
            raise ProjectError(
                "sink-refused", f"{self.client.label} refused what was sent: {error}", hint="look at the server's log"
            ) from error
        for entry, why in refused:
            self.report.refused(entry.row, "not-an-object", f"{entry.key}: {why}", document_of(entry))
        self.report.written(len(portion) - len(refused))

    def _send(self, connection: redis.Redis, portion: Sequence[RedisEntry]) -> list[tuple[RedisEntry, str]]:
        if self.merging is not None:
            return self.merging.send(connection, portion)
        with connection.pipeline(transaction=True) as pipe:
            for entry in portion:
                self._put(pipe, entry)
            pipe.execute()
        return []

    def _put(self, pipe: Any, entry: RedisEntry) -> None:
        if isinstance(entry.value, dict):
            # replaced as a whole: fields of an older row, and a value of another type, are removed
            pipe.delete(entry.key)
            fields = {name: value for name, value in entry.value.items() if value is not None}
            if fields:
                pipe.hset(entry.key, mapping=fields)
                if self.ttl_ms is not None:
                    pipe.pexpire(entry.key, self.ttl_ms)
        elif entry.value is None:
            pipe.delete(entry.key)
        else:
            pipe.set(entry.key, entry.value, px=self.ttl_ms)
