"""Heartbeats as a Spark data source, for flows that have an input with `idle`.

The time of a heartbeat is the offset of the source, so a batch that runs again has the same row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.core.files.state_files import StatePath
from headrace.core.schema import TIMESTAMP, to_ddl
from headrace.engine.inputs.heartbeat import read_heartbeat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.project.model import EventTime

_MARK = "_heartbeat"
"""True in heartbeats and null in rows. The column exists from the union to the filter after the watermark."""
_REGISTRATIONS = itertools.count()


def with_heartbeats(frame: DataFrame, event_time: EventTime, file: StatePath, generation: str) -> DataFrame:
    """The rows and the heartbeats: marked rows that have only an event time.

    The event time is the heartbeat plus the watermark's delay, so that the watermark advances to the heartbeat.
    """
    from pyspark.sql import functions as F

    delay = round(event_time.watermark.total_seconds() * 1000)
    options = {"generation": generation, "delay_ms": str(delay)}
    source = _register(frame.sparkSession, file.absolute())
    schema = to_ddl(_schema(event_time.column))
    heartbeats = frame.sparkSession.readStream.format(source).schema(schema).options(**options).load()
    rows = frame.withColumn(_MARK, F.lit(None).cast("boolean"))
    return rows.unionByName(heartbeats, allowMissingColumns=True)


def without_heartbeats(frame: DataFrame, event_time: EventTime) -> DataFrame:
    """The rows alone; to be called after the watermark.

    The condition includes the event time, which is never null in a heartbeat, because Catalyst moves a condition
    without it before the watermark.
    """
    return frame.where(f"{_MARK} IS NULL OR `{event_time.column}` IS NULL").drop(_MARK)


def _schema(column: str) -> pa.Schema:
    return pa.schema([(column, TIMESTAMP), (_MARK, pa.bool_())])


def _register(spark: SparkSession, file: StatePath) -> str:
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
        columns = [pa.array([time], pa.int64()).cast(TIMESTAMP), pa.array([True])]
        yield pa.RecordBatch.from_arrays(columns, schema=_schema(self._column))
