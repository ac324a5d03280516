"""How far a flow is behind its sources, whether that gets better, and when it will have caught up."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headrace.core.context import Context
from headrace.core.positions import Positions, Split
from headrace.engine.positions.positions import (
    PositionEntry,
    committed_positions,
    input_positions,
    positions_at,
    read_log,
)
from headrace.engine.state.generations import Generation
from headrace.plan.model import FlowPlan

Trend = Literal["growing", "shrinking", "steady"]
_WINDOW_SECONDS = 300.0
_STEADY_SHARE = 0.01
# some minutes of positions of a hundred partitions; the whole log would be read every few seconds
_NEWEST_BYTES = 500_000


@dataclass(frozen=True)
class Pace:
    """How a flow's lag moves. What is not known is None."""

    trend: Trend | None = None
    rate: float | None = None
    """Records per second that the flow takes in."""
    catch_up_s: float | None = None
    """How long it will take to catch up, if all goes on like this; None when it will not."""


@dataclass(frozen=True)
class FlowLag:
    """Where a flow is in all of its inputs."""

    flow: str
    generation: str | None
    splits: Mapping[str, Sequence[Split]]
    """By input; empty for an input that does not tell."""
    pace: Pace
    groups: Mapping[str, str]

    @property
    def records(self) -> int | None:
        """Unread records in all; None when some input does not tell."""
        lags = [split.lag for splits in self.splits.values() for split in splits]
        known = [lag for lag in lags if lag is not None]
        return sum(known) if lags and len(known) == len(lags) else None

    @property
    def seconds(self) -> float | None:
        """How long the oldest unread record has been waiting."""
        lags = [split.lag_s for splits in self.splits.values() for split in splits]
        known = [lag for lag in lags if lag is not None]
        return max(known) if lags and len(known) == len(lags) else None

    def to_json(self) -> dict[str, Any]:
        """As printed."""
        return {
            "flow": self.flow,
            "generation": self.generation,
            "lag": self.records,
            "lag_s": _rounded(self.seconds),
            "trend": self.pace.trend,
            "rate_per_s": _rounded(self.pace.rate),
            "catch_up_s": _rounded(self.pace.catch_up_s),
            "groups": dict(self.groups),
            "partitions": [split_json(name, split) for name, splits in self.splits.items() for split in splits],
            "untold": [name for name, splits in self.splits.items() if not splits],
        }


def split_json(stream: str, split: Split) -> dict[str, Any]:
    """One partition as printed."""
    return {
        "stream": stream,
        "topic": split.topic,
        "partition": split.partition,
        "start": split.start,
        "committed": split.position,
        "end": split.end,
        "lag": split.lag,
        "lag_s": _rounded(split.lag_s),
    }


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 3)


class LagProbe:
    """Measures one flow again and again; it keeps its connections until it is closed."""

    def __init__(self, project: str, flow: FlowPlan, context: Context) -> None:
        self._project = project
        self._flow = flow
        self._inputs: dict[str, Positions] = input_positions(flow, context)

    def measure(self, generation: Generation | None) -> FlowLag:
        """Where the flow is now; a ProjectError when a source does not answer."""
        at = committed_positions(self._inputs, generation) if generation else dict.fromkeys(self._inputs)
        splits = {name: known.measure(at[name]) for name, known in self._inputs.items()}
        groups = {name: known.group(self._project, self._flow.name) for name, known in self._inputs.items()}
        return FlowLag(
            flow=self._flow.name,
            generation=generation.id if generation else None,
            splits=splits,
            pace=self._pace(generation, splits),
            groups={name: group for name, group in groups.items() if group is not None},
        )

    def _pace(self, generation: Generation | None, splits: Mapping[str, Sequence[Split]]) -> Pace:
        counted = [split for parts in splits.values() for split in parts if split.counts_records]
        if generation is None or not counted or any(split.position is None for split in counted):
            return Pace()
        now = time.time()
        before = entry_at(read_log(generation, _NEWEST_BYTES), now - _WINDOW_SECONDS)
        if before is None:
            return Pace()
        read = sum(split.position or 0 for split in counted) - self._read_by(before)
        lag = sum(split.lag or 0 for split in counted)
        return pace(read, before.lag, lag, now - before.time)

    def _read_by(self, moment: PositionEntry) -> int:
        """The sum of all offsets at a moment."""
        at = positions_at(self._inputs, moment.ends)
        found = 0
        for position in at.values():
            parts = [part for part in (position or {}).values() if isinstance(part, Mapping)]
            found += sum(sum(part.values()) for part in parts)
        return found

    def close(self) -> None:
        """Let the connections go."""
        for known in self._inputs.values():
            known.close()


def entry_at(log: Sequence[PositionEntry], since: float) -> PositionEntry | None:
    """The last entry by that time, or else the first after it."""
    earlier = [moment for moment in log if moment.time <= since]
    return earlier[-1] if earlier else log[0] if log else None


def pace(read: int, lag_before: int | None, lag: int, seconds: float) -> Pace:
    """What two looks at a flow, so many seconds apart, say about it."""
    if seconds <= 0:
        return Pace()
    rate = max(0, read) / seconds
    if lag_before is None:
        return Pace(rate=rate, catch_up_s=0.0 if lag == 0 else None)
    change = lag - lag_before
    if abs(change) <= _STEADY_SHARE * max(lag, lag_before):
        return Pace("steady", rate, 0.0 if lag == 0 else None)
    if change > 0:
        return Pace("growing", rate, None)
    return Pace("shrinking", rate, lag / (-change / seconds))
