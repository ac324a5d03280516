"""Generated rows as a Spark data source. Imported only when a stream is read, since it loads PySpark."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.sources.generate.options import GenerateOptions

_ROWS_PER_BATCH = 10_000
_ROWS_WORTH_A_SECOND_TASK = 5_000


@dataclass
class RowRange(InputPartition):
    """A range of rows for one task."""

    start: int
    stop: int
    epoch_ms: int


class GeneratedRows(DataSource):
    """The data source behind `type: generate`; its options are that source as JSON, and how it is read."""

    @classmethod
    def name(cls) -> str:
        """The name it is registered under."""
        return "headrace_generate"

    def _source(self) -> GenerateOptions:
        return GenerateOptions.model_validate_json(self.options["source"])

    def reader(self, schema: StructType) -> DataSourceReader:
        return _GeneratedBatchReader(self._source())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        per_batch = int(self.options["max_records"]) if "max_records" in self.options else None
        return _GeneratedStreamReader(self._source(), per_batch, self.options.get("hurry") == "true")


def _tasks(start: int, stop: int, epoch_ms: int) -> list[RowRange]:
    if stop - start < _ROWS_WORTH_A_SECOND_TASK:
        return [RowRange(start, stop, epoch_ms)] if stop > start else []
    middle = (start + stop) // 2
    return [RowRange(start, middle, epoch_ms), RowRange(middle, stop, epoch_ms)]


def _batches(source: GenerateOptions, rows: Any) -> Iterator[pa.RecordBatch]:
    maker = source.maker(rows.epoch_ms)
    for start in range(rows.start, rows.stop, _ROWS_PER_BATCH):
        yield maker.batch(start, min(start + _ROWS_PER_BATCH, rows.stop))


class _GeneratedBatchReader(DataSourceReader):
    def __init__(self, source: GenerateOptions) -> None:
        self._source = source

    def partitions(self) -> Sequence[InputPartition]:
        return _tasks(0, self._source.batch_count(), self._source.epoch_ms())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _batches(self._source, partition)


class _GeneratedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are {"row": the next row's number, "epoch": the time of row 0}, so replays need no clock."""

    def __init__(self, source: GenerateOptions, max_records: int | None, hurry: bool) -> None:
        self._source = source
        self._max_records = max_records
        self._hurry = hurry
        self._began: tuple[float, int] | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._source.require_count()
        self._hurry = True

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._max_records is None else ReadMaxRows(self._max_records)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"row": 0, "epoch": self._source.epoch_ms()}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        row = start["row"]
        target = self._source.require_count() if self._hurry else self._due(row)
        if isinstance(limit, ReadMaxRows):
            target = min(target, row + limit.max_rows)
        return {"row": max(row, target), "epoch": start["epoch"]}

    def _due(self, row: int) -> int:
        now = time.monotonic()
        if self._began is None:
            self._began = (now, row)
        began, first_row = self._began
        due = first_row + int((now - began) * self._source.rate)
        return due if self._source.count is None else min(due, self._source.count)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return _tasks(start["row"], end["row"], end["epoch"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _batches(self._source, partition)
