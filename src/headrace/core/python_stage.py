"""A Python stage: a chain of Arrow functions that Spark runs in one `mapInArrow`.

    Spark ──Arrow──► [ step ─► step ─► … ─► sink ] ──Arrow──► Spark
    rows                │        │                            rows, or what the sink reports
                        ▼        ▼
                    dead letters: a step keeps the rows that it cannot process;
                    the stage flushes them before its task ends

Handing rows over between Spark and Python costs more than most steps do with them. So neighbouring steps do not start a
stage each: a step receives the stage so far and extends it (`Processor.extend`). A native step ends the stage
(`finish`) and continues with rows of Spark. If the stage is still open behind the last step, and the only sink of the
flow writes from Python too (`core.capabilities.WritesStage`), the sink ends it: rows reach the system behind the sink
without going back to Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from headrace.core.records import spark_schema
from headrace.core.schema import to_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Batches = Iterator[pa.RecordBatch]
Work = Callable[[Batches], Batches]
"""What a task does with its Arrow batches. Pickled to executors, so it connects on first use."""


class StepLetters(Protocol):
    """The dead letters of one step in one task."""

    def keep(self, rows: pa.RecordBatch, index: int, reason: str, detail: str, *, whole: bool = True) -> None:
        """Keep one row of a batch as a dead letter: `reason` is a stable code, `detail` is for people.

        Not `whole`: without the row, only that there was one.
        """

    def flush(self) -> None:
        """Make the dead letters durable. Must happen before the task ends; a stage does it for its steps."""


@dataclass(frozen=True)
class PythonStage:
    """Rows of Spark, and the functions that a Python stage will apply to them. Empty until `then` adds the first."""

    rows: DataFrame
    """The rows that enter the stage."""
    output: pa.Schema | None = None
    """The columns that leave it; None while it is empty."""
    chain: tuple[Work, ...] = ()
    letters: tuple[StepLetters, ...] = ()

    @staticmethod
    def of(rows: DataFrame) -> PythonStage:
        return PythonStage(rows)

    @property
    def is_empty(self) -> bool:
        """Whether the rows leave it as they enter it: then Spark runs no Python for it."""
        return not self.chain

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns that leave the stage. Computed only when needed: Spark has types that Arrow does not have."""
        return spark_schema(self.rows) if self.output is None else self.output

    def then(self, work: Work, output: pa.Schema, letters: StepLetters | None = None) -> PythonStage:
        """The stage with one more function, after which the rows have these columns; `letters` are flushed with it."""
        boxes = self.letters if letters is None else (*self.letters, letters)
        return PythonStage(self.rows, output, (*self.chain, work), boxes)

    def finish(self) -> DataFrame:
        """The rows that leave the stage, as rows of Spark."""
        return self.rows if self.is_empty else self.rows.mapInArrow(self._function, to_ddl(self.schema))

    def finish_with(self, last: Work, ddl: str) -> DataFrame:
        """The rows that `last` makes of those that leave the stage, in the same stage. `ddl` names their columns."""
        return self.rows.mapInArrow(last if self.is_empty else _Sequence(self._function, last), ddl)

    def on(self, rows: DataFrame) -> PythonStage:
        """The same stage for other rows with the same columns: those of one micro-batch."""
        return replace(self, rows=rows)

    @property
    def _function(self) -> Work:
        return _Chain(self.schema, self.chain, self.letters)


@dataclass(frozen=True)
class _Sequence:
    first: Work
    second: Work

    def __call__(self, batches: Batches) -> Batches:
        return self.second(self.first(batches))


@dataclass(frozen=True)
class _Chain:
    schema: pa.Schema
    functions: tuple[Work, ...]
    letters: tuple[StepLetters, ...]

    def __call__(self, batches: Batches) -> Batches:
        for function in self.functions:
            batches = function(batches)
        try:
            for batch in batches:
                yield batch.cast(self.schema) if batch.schema != self.schema else batch
        finally:
            for box in self.letters:
                box.flush()
