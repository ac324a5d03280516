"""Reads what Spark keeps about a query's batches, without Spark. The only place that knows its file format."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headrace.core.statefiles import StatePath


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

    def in_flight(self) -> bool:
        """Whether a batch was begun and not finished: some sinks may have it, and it will be run again."""
        return _newest(self.folder / "offsets") != _newest(self.folder / "commits")


def _newest(folder: StatePath) -> int | None:
    try:
        names = [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        return None
    return max((int(name) for name in names if name.isdecimal()), default=None)
