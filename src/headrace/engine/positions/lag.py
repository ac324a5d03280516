"""The lag of a flow behind its sources, its trend, and the time until it has caught up."""

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
# some minutes of positions of a hundred partitions; reading the whole log every few seconds would be slow
_NEWEST_BYTES = 500_000


@dataclass(frozen=True)
class Pace:
    """How the lag of a flow changes. None means unknown."""

    trend: Trend | None = None
    rate: float | None = None
    """Records read per second."""
    catch_up_s: float | None = None
    """Seconds until the flow has caught up at this rate; None if it does not catch up."""


@dataclass(frozen=True)
class FlowLag:
    """The position of a flow in all of its inputs."""

    flow: str
    generation: str | None
    splits: Mapping[str, Sequence[Split]]
    """By input; empty for an input that reports no positions."""
    pace: Pace
    groups: Mapping[str, str]

    @property
    def records(self) -> int | None:
        """Unread records of all inputs; None if an input does not report them."""
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
    """Measures one flow repeatedly. Connections stay open until it is closed."""

    def __init__(self, project: str, flow: FlowPlan, context: Context) -> None:
        self._project = project
        self._flow = flow
        self._inputs: dict[str, Positions] = input_positions(flow, context)

    def measure(self, generation: Generation | None) -> FlowLag:
        """The current lag; raises a ProjectError if a source does not answer."""
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
        parts = [split for splits_of_input in splits.values() for split in splits_of_input if split.counts_records]
        if generation is None or not parts or any(split.position is None for split in parts):
            return Pace()
        now = time.time()
        earlier = entry_at(read_log(generation, _NEWEST_BYTES), now - _WINDOW_SECONDS)
        if earlier is None:
            return Pace()
        read = sum(split.position or 0 for split in parts) - self._offset_sum(earlier)
        lag = sum(split.lag or 0 for split in parts)
        return pace(read, earlier.lag, lag, now - earlier.time)

    def _offset_sum(self, entry: PositionEntry) -> int:
        total = 0
        for position in positions_at(self._inputs, entry.ends).values():
            parts = [part for part in (position or {}).values() if isinstance(part, Mapping)]
            total += sum(sum(part.values()) for part in parts)
        return total

    def close(self) -> None:
        for known in self._inputs.values():
            known.close()


def entry_at(log: Sequence[PositionEntry], since: float) -> PositionEntry | None:
    """The last entry at or before a time, otherwise the first after it."""
    earlier = [entry for entry in log if entry.time <= since]
    return earlier[-1] if earlier else log[0] if log else None


def pace(read: int, lag_before: int | None, lag: int, seconds: float) -> Pace:
    """The pace between two measurements: records read between them, lag at both, and the seconds between them."""
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
