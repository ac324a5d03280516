"""The logs of tables as a Spark data source. It carries positions, not rows: those are read where they are needed.

Imported only where PySpark is. An offset says, for each log, up to which commit it was read.
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
    """Make the source of a view's tables known to a session, and return its name: none may be used twice."""
    name = f"headrace_tables_{next(_REGISTRATIONS)}"
    own = {"name": classmethod(lambda _source: name), "tables": tables, "max_records": max_records}
    spark.dataSource.register(type("TableFeed", (TableFeed,), own))
    return name


class TableFeed(DataSource):
    """The commits of the logs that a view reads."""

    tables: ClassVar[FlowTables]
    max_records: ClassVar[int]

    def schema(self) -> str:
        """One column, as there has to be one; there are no rows."""
        return "commit bigint"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Commits as they are made."""
        return _TableLogReader(self.tables, self.max_records)


class _TableLogReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, tables: FlowTables, max_records: int) -> None:
        self._tables = tables
        self._max_records = max_records
        self._last: Mapping[str, int] | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is committed later belongs to the next run."""
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
