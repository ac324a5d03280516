"""Heartbeats as a Spark data source, for flows that have an input with `idle`.

The time of a heartbeat is the offset of the source, so a batch that runs again has the same row. The worker that plans
heartbeats loads this module, so it imports little.
"""

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
from headrace.engine.inputs.heartbeat import read_heartbeat

MARK = "_heartbeat"
"""True in heartbeats and null in rows. The column exists from the union to the filter after the watermark."""
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_REGISTRATIONS = itertools.count()


def heartbeat_schema(column: str) -> pa.Schema:
    return pa.schema([(column, _TIMESTAMP), (MARK, pa.bool_())])


def register_heartbeats(spark: SparkSession, file: StatePath) -> str:
    """Register the source of one file under a new name: a session cannot register a name twice."""
    name = f"headrace_heartbeats_{next(_REGISTRATIONS)}"
    members = {"name": classmethod(lambda _source: name), "file": file}
    spark.dataSource.register(type("Heartbeats", (Heartbeats,), members))
    return name


class Heartbeats(DataSource):
    """One row for each new heartbeat in a file."""

    # not an option: options are texts, and the path of an object needs the connection to its store
    file: ClassVar[StatePath]

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return _HeartbeatReader(self.file, self.options["generation"], int(self.options["delay_ms"]), schema[0].name)


@dataclass
class _Heartbeat(InputPartition):
    time_ms: int


class _HeartbeatReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are {"at": the newest heartbeat}."""

    def __init__(self, file: StatePath, generation: str, delay_ms: int, column: str) -> None:
        self._file = file
        self._generation = generation
        self._delay_ms = delay_ms
        self._column = column
        self._last: int | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Leave later heartbeats to the next run."""
        self._last = read_heartbeat(self._file, self._generation) or 0

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"at": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        newest = self._last if self._last is not None else read_heartbeat(self._file, self._generation)
        return {"at": max(start["at"], newest or 0)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [_Heartbeat(end["at"])] if end["at"] > start["at"] else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Heartbeat)
        time = (partition.time_ms + self._delay_ms) * 1000
        columns = [pa.array([time], pa.int64()).cast(_TIMESTAMP), pa.array([True])]
        yield pa.RecordBatch.from_arrays(columns, schema=heartbeat_schema(self._column))
