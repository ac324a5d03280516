"""The log of an endpoint: its changes, in segments that are there whole or not at all.

One segment is what one batch of one flow changed. Positions count segments: 1, 2, 3 … without holes. Whoever follows a
log keeps the position of the last segment it has taken in, and asks for those after it.
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
    """What is asked for was cut off the log: begin with a snapshot."""


class LogDamagedError(Exception):
    """What was read is not what was written."""


@dataclass(frozen=True)
class Mark:
    """Which batch of which writer a segment is. Batches of one writer and generation come in rising order."""

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
    """For the log itself."""


def segment_of(position: int, mark: Mark, parts: Sequence[SegmentPart]) -> Segment:
    """A segment that is committed now."""
    changes, size = sum(part.rows for part in parts), sum(part.bytes for part in parts)
    return Segment(position, mark, changes, size, datetime.now(UTC), tuple(parts))


class BatchStaging(Protocol):
    """Takes the changes of a batch, task by task. Pickled to the tasks."""

    def stage(self, task: int, batches: Iterable[pa.RecordBatch]) -> list[SegmentPart]:
        """Write the changes of one task. They count once a segment is committed that has them."""


class Log(ABC):
    """The log of one version of one endpoint. Any number of processes may read it and commit to it at the same time."""

    endpoint: Endpoint
    id: str
    """Made up when the log was begun: tells it from one that was removed and begun anew, at the same position."""

    @abstractmethod
    def end(self) -> int:
        """The newest position; 0 when there is nothing yet."""

    @abstractmethod
    def begin(self) -> int:
        """The oldest position that is still there, or would be: 1 when nothing was ever cut off."""

    @abstractmethod
    def after(self, position: int, limit: int = 64) -> list[Segment]:
        """The segments after a position, in order; none when it is the newest. LogCutError when one of them is gone."""

    @abstractmethod
    def changes(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        """What a segment changes, in order, with the columns of `endpoint.changes`.

        Nothing of a part is given before all of it was checked: LogDamagedError. LogCutError when it is gone.
        """

    @abstractmethod
    def make(self) -> None:
        """Make what it is kept in, if that does not come by itself; it may be there."""

    @abstractmethod
    def remove(self) -> None:
        """Delete what it is kept in beside its folder; it may be gone."""

    def commit(self, mark: Mark, batches: Iterable[pa.RecordBatch]) -> Segment | None:
        """Add a segment, durably, in one step. None: there is nothing to add, or that batch is already there."""
        return self.commit_parts(mark, self.staging(mark).stage(0, batches))

    @abstractmethod
    def staging(self, mark: Mark) -> BatchStaging:
        """Where the tasks of a batch put its changes."""

    @abstractmethod
    def commit_parts(self, mark: Mark, parts: Sequence[SegmentPart]) -> Segment | None:
        """Make what tasks have staged a segment, in the order given, as `commit` does."""

    @abstractmethod
    def has(self, mark: Mark) -> bool:
        """Whether a batch is there already."""

    def knows(self, writer: str, generation: str) -> bool:
        """Whether a batch of this generation is there."""
        return self.has(Mark(writer, generation, 0))

    def take_in(self, other: Log, segment: Segment) -> None:
        """Commit a segment of another log as well, unless it is there."""
        self.commit(segment.mark, other.changes(segment))

    @abstractmethod
    def cut(self, position: int) -> None:
        """Forget the segments up to and including this one. What batches they were is still known."""
