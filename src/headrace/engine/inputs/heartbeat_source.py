"""Heartbeats as a Spark data source. Imported only where PySpark is: by a flow that has an input with `idle`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.core.files.state_files import StatePath
from headrace.engine.inputs.heartbeat import MARK, read_heartbeat

_REGISTRATIONS = itertools.count()


def register_heartbeats(spark: SparkSession, file: StatePath) -> str:
    """Make the source of one file known to a session, and return its name: a session may not use a name twice."""
    name = f"headrace_heartbeats_{next(_REGISTRATIONS)}"
    own = {"name": classmethod(lambda _source: name), "file": file}
    spark.dataSource.register(type("Heartbeats", (Heartbeats,), own))
    return name


class Heartbeats(DataSource):
    """One row for every heartbeat that was seen; its options say for whom they are written."""

    # options are texts, which could not say how an object store is reached
    file: ClassVar[StatePath]

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Heartbeats as they are written."""
        return _HeartbeatReader(self.file, self.options["generation"], int(self.options["delay_ms"]), schema[0].name)


@dataclass
class _Beat(InputPartition):
    time_ms: int


class _HeartbeatReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are {"at": the newest heartbeat}, so a batch that runs again has the same row again."""

    def __init__(self, file: StatePath, generation: str, delay_ms: int, column: str) -> None:
        self._file = file
        self._generation = generation
        self._delay_ms = delay_ms
        self._column = column
        self._last: int | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is written later belongs to the next run."""
        self._last = read_heartbeat(self._file, self._generation) or 0

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"at": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        seen = self._last if self._last is not None else read_heartbeat(self._file, self._generation)
        return {"at": max(start["at"], seen or 0)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [_Beat(end["at"])] if end["at"] > start["at"] else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Beat)
        time = (partition.time_ms + self._delay_ms) * 1000
        columns = [pa.array([time], pa.int64()).cast(pa.timestamp("us", tz="UTC")), pa.array([True])]
        yield pa.RecordBatch.from_arrays(columns, names=[self._column, MARK])
