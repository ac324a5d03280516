"""The times of the running batch, as a task sees them: written down before it ran, so the same when it runs again."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from headrace.core.files.state_files import StatePath
from headrace.engine.state.checkpoints import Checkpoint

_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True)
class BatchTimes:
    """What a task must know about its batch to judge event times. Times are microseconds since 1970."""

    batch_id: int
    task: int
    timestamp: int
    """When the batch was planned."""
    watermark: int
    """Spark's bound for late rows in this batch: the watermark that was known when the batch before was planned."""


def running_batch() -> int | None:
    """The micro-batch that this task belongs to; None when it belongs to none, or this is no task."""
    if "pyspark" not in sys.modules:  # every Python worker has it
        return None
    from pyspark import TaskContext

    task = TaskContext.get()
    batch_id = None if task is None else task.getLocalProperty(_BATCH_ID)
    return None if batch_id is None else int(batch_id)


@dataclass
class BatchClock:
    """Finds the times in Spark's offset log, once per task. Pickled to executors, so the folder must be theirs too."""

    checkpoint: StatePath
    _times: BatchTimes | None = None

    def times(self) -> BatchTimes:
        """The times of the batch that this task belongs to."""
        if self._times is None:
            self._times = self._look_up()
        return self._times

    def _look_up(self) -> BatchTimes:
        from pyspark import TaskContext

        task = TaskContext.get()
        batch_id = None if task is None else task.getLocalProperty(_BATCH_ID)
        assert task is not None, "a batch clock is read by tasks"
        assert batch_id is not None, "a batch clock is read by tasks of a streaming query"
        number = int(batch_id)
        checkpoint = Checkpoint(self.checkpoint)
        running = checkpoint.batch(number)
        if running is None:
            raise FileNotFoundError(f"batch {number} runs, but {self.checkpoint} has no record of it")
        before = checkpoint.batch(number - 1)
        watermark = 0 if before is None else before.watermark_ms * 1000
        return BatchTimes(number, task.partitionId(), running.timestamp_ms * 1000, watermark)
