"""The runs of a report as a Spark data source. It has no rows: an offset says what a run reads.

An offset holds the number of the run, its time and the versions of all its inputs, so that a run that is repeated after
a crash reads the same. This module imports PySpark.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.engine.inputs.lake import newest_version
from headrace.engine.tables.table_logs import FlowTables

_REGISTRATIONS = itertools.count()


def register_runs(spark: SparkSession, tables: FlowTables, lakes: Mapping[str, str]) -> str:
    """Register the source of a report's runs in a session under a unique name, which is returned."""
    name = f"headrace_report_{next(_REGISTRATIONS)}"
    own = {"name": classmethod(lambda _source: name), "tables": tables, "lakes": dict(lakes)}
    spark.dataSource.register(type("ReportRuns", (ReportRuns,), own))
    return name


class ReportRuns(DataSource):
    """One batch for every start of the query."""

    tables: ClassVar[FlowTables]
    lakes: ClassVar[Mapping[str, str]]

    def schema(self) -> str:
        """Spark requires a column; there are no rows."""
        return "run bigint"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return _ReportReader(self.tables, self.lakes)


class _ReportReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, tables: FlowTables, lakes: Mapping[str, str]) -> None:
        self._tables = tables
        self._lakes = lakes
        self._run: dict[str, Any] | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The run is determined in `latestOffset`."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"run": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        if self._run is None:
            versions = {name: newest_version(path) for name, path in self._lakes.items()}
            at = time.time_ns() // 1_000_000
            self._run = {"run": start["run"] + 1, "at": at, "lake": versions, "tables": self._tables.ends()}
        return self._run

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(())
