"""The log of an endpoint: its changes, in segments that are committed atomically.

One segment holds the changes of one batch of one flow. Positions count segments: 1, 2, 3 … without gaps. A reader
stores the position of the last segment it has applied, and reads those after it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

import pyarrow as pa

from headrace.core.endpoints import Endpoint


class LogCutError(Exception):
    """The requested segments were cut off: start from a snapshot."""


class LogDamagedError(Exception):
    """The content of a file is not what was written."""


@dataclass(frozen=True)
class Mark:
    """The batch and the writer of a segment. Batches of one writer and generation come in rising order."""

    writer: str
    """`<flow>/<sink>`."""
    generation: str
    batch: int


@dataclass(frozen=True)
class SegmentPart:
    """A piece of a segment, as one task wrote it."""

    name: str
    rows: int
    bytes: int
    digest: str


@dataclass(frozen=True)
class Segment:
    """The changes of one batch."""

    position: int
    mark: Mark
    changes: int
    bytes: int
    at: datetime
    """When it was committed."""
    parts: tuple[SegmentPart, ...] = field(default=(), repr=False)
    """Used by the log only."""


def segment_of(position: int, mark: Mark, parts: Sequence[SegmentPart]) -> Segment:
    """A segment that is committed now."""
    changes, size = sum(part.rows for part in parts), sum(part.bytes for part in parts)
    return Segment(position, mark, changes, size, datetime.now(UTC), tuple(parts))


class BatchStaging(Protocol):
    """Where tasks write the changes of a batch. Pickled to the tasks."""

    def stage(self, task: int, batches: Iterable[pa.RecordBatch]) -> list[SegmentPart]:
        """Write the changes of one task. They take effect when a segment with them is committed."""


class Log(ABC):
    """The log of one version of one endpoint. Any number of processes may read it and commit to it at the same time."""

    endpoint: Endpoint
    id: str
    """A random id of the log: a log that was removed and created again has another."""

    @abstractmethod
    def end(self) -> int:
        """The newest position; 0 for an empty log."""

    @abstractmethod
    def begin(self) -> int:
        """The position of the oldest segment that was not cut off: 1 when nothing was ever cut off."""

    @abstractmethod
    def after(self, position: int, limit: int = 64) -> list[Segment]:
        """The segments after a position, in order. Raises LogCutError when one of them was cut off."""

    @abstractmethod
    def changes(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        """The changes of a segment, in order, with the columns of `endpoint.changes`.

        A part is checked as a whole before any of it is returned: raises LogDamagedError, or LogCutError when it was
        cut off.
        """

    @abstractmethod
    def make(self) -> None:
        """Create its storage, where that is needed. Idempotent."""

    @abstractmethod
    def remove(self) -> None:
        """Delete its storage outside its folder. Idempotent."""

    def commit(self, mark: Mark, batches: Iterable[pa.RecordBatch]) -> Segment | None:
        """Commit a segment atomically. None when it is empty or the batch is committed already."""
        return self.commit_parts(mark, self.staging(mark).stage(0, batches))

    @abstractmethod
    def staging(self, mark: Mark) -> BatchStaging:
        """Where the tasks of a batch write its changes."""

    @abstractmethod
    def commit_parts(self, mark: Mark, parts: Sequence[SegmentPart]) -> Segment | None:
        """Commit the changes that tasks have staged, in the given order, as `commit` does."""

    @abstractmethod
    def has(self, mark: Mark) -> bool:
        """Whether a batch is committed already."""

    def knows(self, writer: str, generation: str) -> bool:
        """Whether any batch of this generation is committed."""
        return self.has(Mark(writer, generation, 0))

    def take_in(self, other: Log, segment: Segment) -> None:
        """Commit a segment of another log, unless it is committed already."""
        self.commit(segment.mark, other.changes(segment))

    @abstractmethod
    def cut(self, position: int) -> None:
        """Cut off the segments up to and including this one. Their batches are still known."""
