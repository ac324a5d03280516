"""Rows that a system refuses because of their content: they become dead letters or stop the flow; none is dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from headrace.core.context import Batch, Letters
from headrace.core.errors import ProjectError
from headrace.core.lazy import lazy_modules

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyspark
    from pyspark.sql import DataFrame

    from headrace.core import schema

    TaskWork = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
else:
    pyspark, schema = lazy_modules("pyspark", "headrace.core.schema")

OnRefusal = Literal["dead_letter", "fail"]
ON_ERROR_DESCRIPTION = (
    "What happens to a row that the server refuses because of its content: `dead_letter` stores it as JSON with the "
    "server's reason, `fail` stops the flow."
)

_BYTES = "bytes"
_SUMMARY_SCHEMA = pa.schema([("outcome", pa.string()), ("rows", pa.int64())])


@dataclass
class Report:
    """The outcomes of the rows of one task; pickled to the workers while empty."""

    label: str
    generation: str
    batch_id: int
    letters: Letters | None
    counts: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def of(batch: Batch, label: str, on_error: OnRefusal) -> Report:
        return Report(label, batch.generation, batch.batch_id, batch.letters if on_error == "dead_letter" else None)

    def written(self, rows: int, size: int = 0) -> None:
        """Count rows that arrived, and their bytes where known."""
        self.counts["written"] += rows
        if size:
            self.counts[_BYTES] += size

    def refused(self, row: int, reason: str, detail: str, value: bytes | None) -> None:
        """Make a dead letter of a row of this task, which `row` numbers, or raise."""
        if self.letters is None:
            raise ProjectError(
                "sink-row-refused",
                f"{self.label} refused a row ({reason}): {detail}",
                hint="fix the SQL or the target; `on_error: dead_letter` stores such rows and continues",
            )
        position = {"generation": self.generation, "batch": self.batch_id, "task": task_number(), "row": row}
        self.letters.add(reason, detail, position, value)
        self.counts["refused"] += 1

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Flush the dead letters, then report the counts to the driver."""
        if self.letters is not None:
            self.letters.flush()
        columns = [pa.array(list(self.counts)), pa.array(list(self.counts.values()), pa.int64())]
        if self.counts:
            yield pa.RecordBatch.from_arrays(columns, schema=_SUMMARY_SCHEMA)


def task_number() -> int:
    """The partition of this task; 0 outside of Spark."""
    task = pyspark.TaskContext.get()
    return 0 if task is None else task.partitionId()


def write_counted(rows: DataFrame, work: TaskWork, batch: Batch) -> dict[str, int]:
    """Run tasks that end with the batches of their `Report`, and add up the outcomes for the metrics."""
    outcomes = rows.mapInArrow(work, schema.to_ddl(_SUMMARY_SCHEMA)).collect()
    return count_up(batch, [(row["outcome"], row["rows"]) for row in outcomes])


def count_up(batch: Batch, summaries: list[tuple[str, int]]) -> dict[str, int]:
    """Add up the outcomes that the tasks report, for the metrics."""
    totals: Counter[str] = Counter()
    for outcome, rows in summaries:
        totals[outcome] += rows
    size = totals.pop(_BYTES, None)
    if size is not None:
        batch.tally.add_bytes(batch.flow, batch.sink, size)
    for outcome, rows in totals.items():
        batch.tally.add(batch.flow, batch.sink, outcome, rows)
    return dict(totals)
