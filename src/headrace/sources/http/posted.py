"""The inbox of an HTTP stream as a Spark data source. Imported only when a stream is read, since it loads PySpark."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.core.context import ReadContext
from headrace.core.schema import TIMESTAMP, to_ddl
from headrace.log.inbox import Inbox, count
from headrace.log.log import Segment
from headrace.sources.http.positions import inbox_errors, inbox_of, lost

_REGISTRATIONS = itertools.count()
_BATCH_BYTES = 64_000_000
"""Compressed bytes of a batch, which are several times as many in memory."""
_TASK_BYTES = 1_000_000
"""Compressed bytes that are worth another task."""
_SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("_commit", pa.int64()),
        ("_number", pa.int32()),
        ("_timestamp", TIMESTAMP),
    ]
)
Offset = dict[str, dict[str, int]]


def register_posts(spark: SparkSession, path: str, max_age: timedelta, reading: ReadContext) -> str:
    """Register a data source for an inbox with a session, and return its unique name."""
    name = f"headrace_http_{next(_REGISTRATIONS)}"
    own = {
        "name": classmethod(lambda _source: name),
        "posts": Posts(path, max_age, reading, spark.sparkContext.defaultParallelism),
    }
    spark.dataSource.register(type("PostedRecords", (PostedRecords,), own))
    return name


@dataclass
class Run(InputPartition):
    """Segments after one position, up to and including another, for one task."""

    after: int
    last: int


@dataclass(frozen=True)
class Posts:
    """Reads the inbox. Pickled to the process that plans offsets, and to the tasks."""

    path: str
    max_age: timedelta
    reading: ReadContext
    slots: int

    @property
    def inbox(self) -> Inbox:
        return inbox_of(self.reading.context.log_path, self.path, self.max_age)

    def runs(self, after: int, last: int) -> list[Run]:
        """The segments in ranges of about equal size, at most one per slot."""
        segments = list(self._between(after, last))
        share = max(_TASK_BYTES, -(-sum(segment.bytes for segment in segments) // max(1, self.slots)))
        runs, begin, size = list[Run](), after, 0
        for segment in segments:
            size += segment.bytes
            if size >= share or segment.position == last:
                runs.append(Run(begin, segment.position))
                begin, size = segment.position, 0
        return runs

    def up_to(self, after: int, bound: int) -> int:
        """The end of a batch that begins after a position: about `max_records` further."""
        records = size = 0
        for segment in self._between(after, bound):
            records, size = records + count(segment), size + segment.bytes
            if size >= _BATCH_BYTES or records >= (self.reading.max_records or records + 1):
                return segment.position
        return bound

    def rows(self, run: Run) -> Iterator[pa.RecordBatch]:
        inbox = self.inbox
        for segment in self._between(run.after, run.last):
            with inbox_errors(self.path):
                rows = [batch["row"] for batch in inbox.batches(segment)]
            number = 0
            for values in rows:
                yield _batch(values, segment, number)
                number += len(values)

    def _between(self, after: int, last: int) -> Iterator[Segment]:
        inbox = self.inbox
        while after < last:
            with inbox_errors(self.path):
                segments = inbox.segments(after, min(256, last - after))
            for segment in segments:
                after = segment.position
                yield segment


def _batch(values: pa.Array, segment: Segment, first: int) -> pa.RecordBatch:
    count = len(values)
    columns = [
        values,
        pa.repeat(pa.scalar(segment.position, pa.int64()), count),
        pa.array(range(first, first + count), pa.int32()),
        pa.repeat(pa.scalar(segment.at, TIMESTAMP), count),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


class PostedRecords(DataSource):
    """The records of one inbox."""

    posts: ClassVar[Posts]

    def schema(self) -> str:
        return to_ddl(_SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _PostedBatchReader(self.posts)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return _PostedStreamReader(self.posts)


class _PostedBatchReader(DataSourceReader):
    def __init__(self, posts: Posts) -> None:
        self._posts = posts

    def partitions(self) -> Sequence[InputPartition]:
        inbox = self._posts.inbox
        return self._posts.runs(inbox.begin(), inbox.end())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Run)
        return self._posts.rows(partition)


class _PostedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset names the next commit to read, in the form that Kafka's have: `{"/v1/telemetry": {"0": 12}}`."""

    def __init__(self, posts: Posts) -> None:
        self._posts = posts
        self._bound: int | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Records that are posted later belong to the next run."""
        self._bound = self._posts.inbox.end()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def initialOffset(self) -> Offset:  # noqa: N802
        start = self._posts.reading.start
        if start is not None:
            return {path: dict(parts) for path, parts in start.items()}
        return self._offset(self._posts.inbox.begin())

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        after = self._position(start)
        bound = self._posts.inbox.end() if self._bound is None else self._bound
        if after > bound:
            raise lost(self._posts.path, after, bound)
        return self._offset(self._posts.up_to(after, bound))

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return self._posts.runs(self._position(start), self._position(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Run)
        return self._posts.rows(partition)

    def _offset(self, position: int) -> Offset:
        return {self._posts.path: {"0": position + 1}}

    def _position(self, offset: Offset) -> int:
        return offset[self._posts.path]["0"] - 1
