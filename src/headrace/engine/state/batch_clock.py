"""The times of the running batch, for its tasks: recorded by Spark before the batch, so the same when it runs again."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from headrace.core.files.state_files import StatePath
from headrace.engine.state.checkpoints import Checkpoint

_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True)
class BatchTimes:
    """The times of a batch, in microseconds since 1970."""

    batch_id: int
    task: int
    timestamp: int
    """When the batch was planned."""
    watermark: int
    """Spark's bound for late rows in this batch: the watermark at the time when the previous batch was planned."""


def running_batch() -> int | None:
    """The micro-batch of this task; None outside of a task of a streaming query."""
    if "pyspark" not in sys.modules:  # every Python worker has loaded it
        return None
    from pyspark import TaskContext

    task = TaskContext.get()
    batch_id = None if task is None else task.getLocalProperty(_BATCH_ID)
    return None if batch_id is None else int(batch_id)


@dataclass
class BatchClock:
    """Reads the times from Spark's offset log, once per task. Pickled to executors, which must reach the folder too."""

    checkpoint: StatePath
    _times: BatchTimes | None = None

    def times(self) -> BatchTimes:
        if self._times is None:
            self._times = self._read()
        return self._times

    def _read(self) -> BatchTimes:
        from pyspark import TaskContext

        task = TaskContext.get()
        batch_id = None if task is None else task.getLocalProperty(_BATCH_ID)
        assert task is not None, "a batch clock is only read in tasks"
        assert batch_id is not None, "a batch clock is only read in tasks of a streaming query"
        number = int(batch_id)
        checkpoint = Checkpoint(self.checkpoint)
        running = checkpoint.batch(number)
        if running is None:
            raise FileNotFoundError(f"batch {number} is running, but {self.checkpoint} has no record of it")
        before = checkpoint.batch(number - 1)
        watermark = 0 if before is None else before.watermark_ms * 1000
        return BatchTimes(number, task.partitionId(), running.timestamp_ms * 1000, watermark)
