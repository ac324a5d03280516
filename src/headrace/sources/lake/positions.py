"""Positions in a Delta table: `{"version": 12}`, the next commit to read, or null for the initial rows of the table."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from deltalake import DeltaTable

# commits without rows
_UPKEEP = ("OPTIMIZE", "VACUUM START", "VACUUM END")


class LakePositions(Positions):
    """Whole commits. A flow in the middle of a commit, or of the initial rows, reads that again."""

    comparable = True

    def __init__(self, label: str, path: str, table: Callable[[], DeltaTable]) -> None:
        super().__init__(label)
        self._path = path
        self._table = table

    def of_checkpoint(self, end: Any) -> Position | None:
        """Delta writes the id of the table and the version."""
        if not isinstance(end, dict) or "reservoirId" not in end or end["reservoirId"] != self._id:
            return None
        return {"version": None if end.get("isStartingVersion") else end["reservoirVersion"]}

    def reached(self, end: Any) -> Reached | None:
        """Version and place in it; None while the initial rows are being read."""
        at = self.of_checkpoint(end)
        return None if at is None or at["version"] is None else {self._path: (end["reservoirVersion"], end["index"])}

    @cached_property
    def _id(self) -> str:
        return str(self._table().metadata().id)

    def resolve(self, target: Target, current: Position | None, scope: SplitScope) -> Position | None:
        """A version between the first and the next one."""
        commits = self._commits()
        following = max(commits, default=-1) + 1
        at = None if current is None else current["version"]
        version = self._version(target, at, commits, following) if scope.holds(self._path, 0) else at
        return {"version": None if version is None else min(max(version, 0), following)}

    def _version(self, target: Target, at: int | None, commits: dict[int, int], following: int) -> int | None:
        match target:
            case Earliest():
                return None
            case Latest():
                return following
            case Current():
                return at
            case AtTime(moment):
                since = [version for version, ms in commits.items() if ms >= moment.timestamp() * 1000]
                return min(since, default=following)
            case AtOffset(version):
                return version
            case ShiftBy(count):
                return None if at is None else at + count
            case Explicit(offsets):
                offset = offsets.get(self._path, {}).get(0)
                return at if offset is None else None if offset == -2 else following if offset == -1 else offset

    def measure(self, position: Position | None) -> list[Split]:
        """One split, which counts versions."""
        commits = self._commits()
        at = None if position is None else position["version"]
        unread = [] if at is None else [ms for version, ms in commits.items() if version >= at]
        lag_s = None if at is None else max(0.0, time.time() - min(unread) / 1000) if unread else 0.0
        end = max(commits, default=-1) + 1
        # maintenance also creates versions, which have no rows
        shown = None if at is None else at if unread else max(at, end)
        return [Split(self._path, 0, min(commits, default=0), end, shown, lag_s, counts_records=False)]

    def _commits(self) -> dict[int, int]:
        """When each version with rows was committed, in milliseconds."""
        history = self._table().history()
        return {
            commit["version"]: commit.get("timestamp", 0)
            for commit in history
            if commit.get("operation") not in _UPKEEP
        }
