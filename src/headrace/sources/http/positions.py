"""Positions in the inbox of an HTTP stream: `{"/v1/telemetry": {"0": 12}}`, the next commit to read."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from headrace.core.errors import Exit, ProjectError
from headrace.core.files.state_files import StatePath
from headrace.core.positions import (
    AtOffset,
    AtTime,
    Current,
    Earliest,
    Explicit,
    Latest,
    Position,
    Positions,
    Reached,
    ShiftBy,
    Split,
    SplitScope,
    Target,
)
from headrace.log.inbox import Inbox, count
from headrace.log.log import LogCutError, LogDamagedError, Segment

_MOST = 10_000
"""Commits that are read to count unread records; beyond, the lag is in seconds only."""


def inbox_of(root: StatePath, path: str, max_age: timedelta) -> Inbox:
    """The inbox of a path, below the folder of logs. Names of tables have no dots."""
    return Inbox(root, f"http{path.replace('/', '.')}", max_age)


class HttpPositions(Positions):
    """Whole commits of one inbox."""

    comparable = True
    releases = True

    def __init__(self, path: str, inbox: Inbox, retention: timedelta) -> None:
        super().__init__(f"http POST {path}")
        self._path = path
        self._inbox = inbox
        self._retention = retention

    def of_checkpoint(self, end: Any) -> Position | None:
        return {self._path: end[self._path]} if isinstance(end, dict) and self._path in end else None

    def reached(self, end: Any) -> Reached | None:
        at = self.of_checkpoint(end)
        return None if at is None else {self._path: (at[self._path]["0"],)}

    def resolve(self, target: Target, current: Position | None, scope: SplitScope) -> Position | None:
        """A commit between the oldest and the next one."""
        first, following = self._inbox.begin() + 1, self._inbox.end() + 1
        at = first if current is None else current[self._path]["0"]
        commit = self._commit(target, at, first, following) if scope.holds(self._path, 0) else at
        return {self._path: {"0": min(max(commit, first), following)}}

    def _commit(self, target: Target, at: int, first: int, following: int) -> int:
        match target:
            case Earliest():
                return first
            case Latest():
                return following
            case Current():
                return at
            case AtTime(moment):
                return next((segment.position for segment in self._segments(first) if segment.at >= moment), following)
            case AtOffset(commit):
                return commit
            case ShiftBy(count):
                return at + count
            case Explicit(offsets):
                offset = offsets.get(self._path, {}).get(0, at)
                return first if offset == -2 else following if offset == -1 else offset

    def measure(self, position: Position | None) -> list[Split]:
        """One split, which counts commits; their records are counted up to a limit."""
        first, following = self._inbox.begin() + 1, self._inbox.end() + 1
        if position is None:
            return [Split(self._path, 0, first, following, None, counts_records=False)]
        at = position[self._path]["0"]
        unread = list(self._segments(at)) if following - at <= _MOST and at >= first else []
        oldest = unread[0] if unread else next(self._segments(max(at, first)), None)
        lag_s = 0.0 if oldest is None else max(0.0, time.time() - oldest.at.timestamp())
        counted = sum(count(segment) for segment in unread) if unread or oldest is None else None
        return [Split(self._path, 0, first, following, at, lag_s, counts_records=False, unread=counted)]

    def release(self, reached: Sequence[Position | None]) -> None:
        """Cut off what all flows have read, when it is older than the retention."""
        nexts = [None if position is None else position[self._path]["0"] for position in reached]
        known = [next - 1 for next in nexts if next is not None]
        if known and len(known) == len(nexts):
            self._inbox.release(min(*known, self._inbox.end()), self._retention)

    def _segments(self, first: int) -> Iterator[Segment]:
        after = first - 1
        with inbox_errors(self._path):
            while segments := self._inbox.segments(after):
                yield from segments
                after = segments[-1].position


def lost(path: str, read: int, commits: int) -> ProjectError:
    """The error for an inbox with less than a flow has read: it was replaced."""
    return ProjectError(
        "http-inbox-lost",
        f"the inbox of {path} has {commits} commits, and the flow has read {read}: it was replaced",
        hint="restore the inbox that belongs to the flow's state, or headrace rewind --to earliest",
        exit_code=Exit.CONFLICT,
    )


@contextmanager
def inbox_errors(path: str) -> Iterator[None]:
    """Raise errors of an inbox as errors with a code."""
    try:
        yield
    except LogCutError:
        raise ProjectError(
            "http-inbox-cut",
            f"what was posted to {path} after the flow's position is no longer kept",
            hint="headrace rewind --to earliest starts with the oldest record; 'retention' keeps more",
            exit_code=Exit.CONFLICT,
        ) from None
    except LogDamagedError as error:
        raise ProjectError(
            "http-inbox-damaged", f"what was posted to {path} cannot be read: {error}", hint="check the disk"
        ) from None
