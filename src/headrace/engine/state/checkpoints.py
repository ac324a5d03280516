"""Reads what Spark keeps about a query's batches, without Spark. The only place that knows its file format."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headrace.core.files.state_files import StatePath, write_atomically


@dataclass(frozen=True)
class BatchRecord:
    """What Spark wrote down before it ran a batch: the same again when the batch is replayed."""

    batch_id: int
    timestamp_ms: int
    watermark_ms: int
    """Rows are too late in the batch *after* this one when they are older; 0 when not known yet."""
    settings: dict[str, str]
    ends: tuple[Any, ...]
    """Where the batch ends in each source, in Spark's order; None for a source that has had no data yet."""

    @property
    def began_at(self) -> datetime:
        """When the batch was planned."""
        return datetime.fromtimestamp(self.timestamp_ms / 1000, UTC)


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint folder of one generation."""

    folder: StatePath

    def batch(self, batch_id: int) -> BatchRecord | None:
        """The record of one batch, if it is still kept."""
        file = self.folder / "offsets" / str(batch_id)
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return None
        if not lines or lines[0] != "v1":
            raise ValueError(f"{file} is not an offset log of the form this engine writes: {lines[:1]}")
        said = json.loads(lines[1])
        ends = tuple(None if line == "-" else json.loads(line) for line in lines[2:])
        return BatchRecord(batch_id, said["batchTimestampMs"], said["batchWatermarkMs"], said["conf"], ends)

    def planned(self) -> BatchRecord | None:
        """The newest batch that was begun."""
        newest = _newest(self.folder / "offsets")
        return None if newest is None else self.batch(newest)

    def committed(self) -> BatchRecord | None:
        """The newest batch that is done: every sink has it."""
        newest = _newest(self.folder / "commits")
        return None if newest is None else self.batch(newest)

    def begun(self) -> bool:
        """Whether there was ever a batch."""
        return any(_newest(self.folder / name) is not None for name in ("offsets", "commits"))

    def next_watermark(self) -> int | None:
        """The watermark, in milliseconds, that the batch after the last committed one has; None before the first."""
        newest = _newest(self.folder / "commits")
        if newest is None:
            return None
        lines = (self.folder / "commits" / str(newest)).read_text(encoding="utf-8").splitlines()
        record = self.batch(newest)
        said = json.loads(lines[1]).get("nextBatchWatermarkMs", 0) if len(lines) > 1 else 0
        return max(said, 0 if record is None else record.watermark_ms)

    def plant(self, ends: Sequence[Any], watermark_ms: int) -> int:
        """Write down what the next batch is to be, as Spark does before it runs one; its number.

        The query must be stopped, with no batch in flight. Its next start finds a batch that was begun and not
        finished, and runs exactly that: up to these ends, with this watermark.
        """
        last = self.committed()
        assert last is not None, "only a query that has done a batch can be told its next one"
        assert not self.in_flight(), "the next batch is already written down"
        said = {"batchWatermarkMs": watermark_ms, "batchTimestampMs": round(time.time() * 1000), "conf": last.settings}
        lines = ["v1", json.dumps(said), *("-" if end is None else json.dumps(end) for end in ends)]
        # without a line break at the end: Spark would read an empty end
        write_atomically(self.folder / "offsets" / str(last.batch_id + 1), "\n".join(lines).encode())
        return last.batch_id + 1

    def in_flight(self) -> bool:
        """Whether a batch was begun and not finished: some sinks may have it, and it will be run again."""
        return _newest(self.folder / "offsets") != _newest(self.folder / "commits")


def _newest(folder: StatePath) -> int | None:
    try:
        names = [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        return None
    return max((int(name) for name in names if name.isdecimal()), default=None)
