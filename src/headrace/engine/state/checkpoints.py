"""Reads the offset and commit logs of Spark's checkpoints, without Spark. Only this module knows their format."""

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
    """Spark's record of a batch, written before the batch runs and used again when it runs again."""

    batch_id: int
    timestamp_ms: int
    watermark_ms: int
    """The bound for late rows in the batch *after* this one; 0 when not known yet."""
    settings: dict[str, str]
    ends: tuple[Any, ...]
    """The end of the batch in each source, in Spark's order; None for a source without data so far."""

    @property
    def began_at(self) -> datetime:
        return datetime.fromtimestamp(self.timestamp_ms / 1000, UTC)


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint folder of one generation."""

    folder: StatePath

    def batch(self, batch_id: int) -> BatchRecord | None:
        """The record of a batch; None if it does not exist or was removed."""
        file = self.folder / "offsets" / str(batch_id)
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return None
        if not lines or lines[0] != "v1":
            raise ValueError(f"{file} is not an offset log in the format that this engine writes: {lines[:1]}")
        metadata = json.loads(lines[1])
        ends = tuple(None if line == "-" else json.loads(line) for line in lines[2:])
        timestamp, watermark = metadata["batchTimestampMs"], metadata["batchWatermarkMs"]
        return BatchRecord(batch_id, timestamp, watermark, metadata["conf"], ends)

    def planned(self) -> BatchRecord | None:
        """The newest batch that was started."""
        newest = _newest(self.folder / "offsets")
        return None if newest is None else self.batch(newest)

    def committed(self) -> BatchRecord | None:
        """The newest committed batch: every sink has it."""
        newest = _newest(self.folder / "commits")
        return None if newest is None else self.batch(newest)

    def begun(self) -> bool:
        """Whether a batch was ever started."""
        return any(_newest(self.folder / name) is not None for name in ("offsets", "commits"))

    def next_watermark(self) -> int | None:
        """The watermark, in milliseconds, of the batch after the last committed one; None before the first."""
        newest = _newest(self.folder / "commits")
        if newest is None:
            return None
        lines = (self.folder / "commits" / str(newest)).read_text(encoding="utf-8").splitlines()
        record = self.batch(newest)
        watermark = json.loads(lines[1]).get("nextBatchWatermarkMs", 0) if len(lines) > 1 else 0
        return max(watermark, 0 if record is None else record.watermark_ms)

    def plant(self, ends: Sequence[Any], watermark_ms: int) -> int:
        """Record the next batch, as Spark does before it runs a batch; returns its number.

        The query must be stopped, with no batch in flight. Its next start finds a batch that was started and not
        committed, and runs exactly this batch: up to these ends, with this watermark.
        """
        last = self.committed()
        assert last is not None, "the query has no committed batch yet"
        assert not self.in_flight(), "the next batch is already recorded"
        metadata = {
            "batchWatermarkMs": watermark_ms,
            "batchTimestampMs": round(time.time() * 1000),
            "conf": last.settings,
        }
        lines = ["v1", json.dumps(metadata), *("-" if end is None else json.dumps(end) for end in ends)]
        # no line break at the end: Spark would read an empty offset
        write_atomically(self.folder / "offsets" / str(last.batch_id + 1), "\n".join(lines).encode())
        return last.batch_id + 1

    def in_flight(self) -> bool:
        """Whether a batch was started and not committed: some sinks may have it, and it will run again."""
        return _newest(self.folder / "offsets") != _newest(self.folder / "commits")


def _newest(folder: StatePath) -> int | None:
    try:
        names = [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        return None
    return max((int(name) for name in names if name.isdecimal()), default=None)
