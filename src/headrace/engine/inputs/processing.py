"""Runs the processors of a flow on its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.core.context import Context
from headrace.core.files.state_files import StatePath
from headrace.core.processor import StandingClock, StepClock, StepContext
from headrace.core.python_stage import PythonStage
from headrace.engine.letters.dead_letters import DeadLetterWriter
from headrace.engine.letters.step_rows import row_text
from headrace.engine.state.batch_clock import BatchClock, running_batch
from headrace.plan.model import ProcessorStep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass
class StepDeadLetters:
    """The dead letters of one step in one task: rows as JSON, with their number in the task as position.

    A batch that runs again divides its rows into the same tasks, so a dead letter has the same position again.
    """

    writer: DeadLetterWriter
    _count: int = 0

    def keep(self, rows: pa.RecordBatch, index: int, reason: str, detail: str, *, whole: bool = True) -> None:
        """Add a dead letter; without `whole` it has no row."""
        generation = self.writer.generation
        position = {"generation": generation, "batch": running_batch(), "task": _task(), "number": self._count}
        self._count += 1
        self.writer.add(reason, detail, position, row_text(rows, index) if whole else None)

    def flush(self) -> None:
        """Must be called before the task ends."""
        self.writer.flush()


def _task() -> int | None:
    from pyspark import TaskContext

    task = TaskContext.get()
    return None if task is None else task.partitionId()


@dataclass(frozen=True)
class CheckpointClock:
    """The times of a batch as Spark recorded them."""

    of: BatchClock

    def number(self) -> int:
        return self.of.times().batch_id

    def planned(self) -> int:
        return self.of.times().timestamp

    def watermark(self) -> int:
        return self.of.times().watermark


@dataclass(frozen=True)
class Processing:
    """The context in which the steps of one flow run."""

    context: Context
    flow: str
    generation: str
    letters: StatePath
    """The folder of dead letters."""
    streaming: bool = True
    clock: StepClock = field(default_factory=StandingClock)

    def run(self, rows: DataFrame, steps: Sequence[ProcessorStep], event_time: str | None = None) -> DataFrame:
        return self.extend(PythonStage.of(rows), steps, event_time).finish()

    def extend(self, stage: PythonStage, steps: Sequence[ProcessorStep], event_time: str | None = None) -> PythonStage:
        """The stage after these steps. It is still open if the last of them runs in Python."""
        for step in steps:
            stage = step.processor.extend(stage, self._at(step, event_time))
        return stage

    def _at(self, step: ProcessorStep, event_time: str | None) -> StepContext:
        writer = DeadLetterWriter(self.letters, self.flow, step.id, self.generation)
        return StepContext(
            context=self.context,
            flow=self.flow,
            step=step.id,
            letters=StepDeadLetters(writer),
            clock=self.clock,
            generation=self.generation,
            streaming=self.streaming,
            event_time=event_time,
        )
