"""The logs of tables as a Spark data source. It has offsets but no rows: a batch reads its rows from the logs itself.

An offset has, for each log, the commit up to which it was read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.engine.tables.table_logs import FlowTables

_REGISTRATIONS = itertools.count()


def register_feed(spark: SparkSession, tables: FlowTables, max_records: int) -> str:
    """Register the source of a flow's tables under a new name: a session cannot register a name twice."""
    name = f"headrace_tables_{next(_REGISTRATIONS)}"
    members = {"name": classmethod(lambda _source: name), "tables": tables, "max_records": max_records}
    spark.dataSource.register(type("TableFeed", (TableFeed,), members))
    return name


class TableFeed(DataSource):
    """The commits of the logs that a flow reads."""

    tables: ClassVar[FlowTables]
    max_records: ClassVar[int]

    def schema(self) -> str:
        """Spark needs at least one column, though there are no rows."""
        return "commit bigint"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return _TableLogReader(self.tables, self.max_records)


class _TableLogReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, tables: FlowTables, max_records: int) -> None:
        self._tables = tables
        self._max_records = max_records
        self._last: Mapping[str, int] | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Leave later commits to the next run."""
        self._last = self._tables.ends()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return self._tables.start()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return self._tables.next(start, self._max_records, self._last)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(())
