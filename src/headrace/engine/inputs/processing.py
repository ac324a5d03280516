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
from headrace.engine.letters.dead_letters import LetterBox
from headrace.engine.letters.step_rows import row_text
from headrace.engine.state.batch_clock import BatchClock, running_batch
from headrace.plan.model import ProcessorStep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass
class RowLetters:
    """The dead letters of one step in one task: rows as JSON, addressed by where they stood in their task.

    A batch that runs again divides its rows into the same tasks, so a letter has the same address again.
    """

    box: LetterBox
    _kept: int = 0

    def keep(self, rows: pa.RecordBatch, index: int, reason: str, detail: str, *, whole: bool = True) -> None:
        """Keep one row, or only that there was one."""
        position = {"generation": self.box.generation, "batch": running_batch(), "task": _task(), "number": self._kept}
        self._kept += 1
        self.box.add(reason, detail, position, row_text(rows, index) if whole else None)

    def flush(self) -> None:
        """Make the letters durable. Must have happened before the task ends."""
        self.box.flush()


def _task() -> int | None:
    from pyspark import TaskContext

    task = TaskContext.get()
    return None if task is None else task.partitionId()


@dataclass(frozen=True)
class CheckpointClock:
    """The times of a batch as Spark wrote them down."""

    of: BatchClock

    def number(self) -> int:
        """The batch."""
        return self.of.times().batch_id

    def planned(self) -> int:
        """When it was planned."""
        return self.of.times().timestamp

    def watermark(self) -> int:
        """The bound for late rows."""
        return self.of.times().watermark


@dataclass(frozen=True)
class Processing:
    """Where the steps of one flow run."""

    context: Context
    flow: str
    generation: str
    letters: StatePath
    """The folder of dead letters."""
    streaming: bool = True
    clock: StepClock = field(default_factory=StandingClock)

    def run(self, rows: DataFrame, steps: Sequence[ProcessorStep], event_time: str | None = None) -> DataFrame:
        """The rows after these steps."""
        return self.extend(PythonStage.of(rows), steps, event_time).finish()

    def extend(self, stage: PythonStage, steps: Sequence[ProcessorStep], event_time: str | None = None) -> PythonStage:
        """The stage after these steps. It is still open if the last of them runs in Python."""
        for step in steps:
            stage = step.processor.extend(stage, self._at(step, event_time))
        return stage

    def _at(self, step: ProcessorStep, event_time: str | None) -> StepContext:
        box = LetterBox(self.letters, self.flow, step.id, self.generation)
        return StepContext(
            context=self.context,
            flow=self.flow,
            step=step.id,
            letters=RowLetters(box),
            clock=self.clock,
            generation=self.generation,
            streaming=self.streaming,
            event_time=event_time,
        )
