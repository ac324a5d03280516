"""Positions in sources: where a reader is, where it may be told to go, and how far it is behind.

A position is JSON that only its source understands, such as `{"orders": {"0": 12}}`: the next record to read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from headrace.core.errors import Exit, ProjectError

Position = Mapping[str, Any]
Offsets = dict[str, dict[int, int]]
Reached = Mapping[str, tuple[int, ...]]
"""How far a reader is, by the parts of a source: greater is further."""


@dataclass(frozen=True)
class Split:
    """One part of a source that is read on its own, such as a partition, as it is now. What is not known is None."""

    topic: str
    partition: int
    start: int
    """The oldest that can still be read."""
    end: int
    """One after the newest."""
    position: int | None
    """The next to be read."""
    lag_s: float | None = None
    """How long the oldest unread record has been waiting; 0 when there is none."""
    counts_records: bool = True
    """Whether offsets count records: the difference of two versions of a table says nothing about its rows."""
    unread: int | None = None
    """How many records are still to be read, where the source knows it and offsets do not say it."""

    @property
    def lag(self) -> int | None:
        """How many records are still to be read."""
        if self.unread is not None:
            return self.unread
        if self.position is None or not (self.counts_records or self.position >= self.end):
            return None
        return max(0, self.end - self.position)


@dataclass(frozen=True)
class Earliest:
    """The oldest record there is."""

    def __str__(self) -> str:
        return "earliest"


@dataclass(frozen=True)
class Latest:
    """Only what comes from now on."""

    def __str__(self) -> str:
        return "latest"


@dataclass(frozen=True)
class Current:
    """Where the flow is."""

    def __str__(self) -> str:
        return "where it is"


@dataclass(frozen=True)
class AtTime:
    """The first record of this time or later; the end where there is none."""

    moment: datetime

    def __str__(self) -> str:
        return self.moment.isoformat()


@dataclass(frozen=True)
class AtOffset:
    """This offset in every split."""

    offset: int

    def __str__(self) -> str:
        return f"offset {self.offset}"


@dataclass(frozen=True)
class ShiftBy:
    """So many records on, or back when negative."""

    records: int

    def __str__(self) -> str:
        return f"{abs(self.records)} records {'on' if self.records >= 0 else 'back'}"


@dataclass(frozen=True)
class Explicit:
    """An offset for each split named (-2: earliest, -1: latest); the others stay where they are."""

    offsets: Mapping[str, Mapping[int, int]]

    def __str__(self) -> str:
        return "given offsets"


Target = Earliest | Latest | Current | AtTime | AtOffset | ShiftBy | Explicit


@dataclass(frozen=True)
class SplitScope:
    """Which splits are meant: all, or those of some topics."""

    topics: Mapping[str, frozenset[int] | None] = field(default_factory=dict)

    def holds(self, topic: str, partition: int) -> bool:
        """Whether a split is meant."""
        if not self.topics:
            return True
        chosen = self.topics.get(topic, frozenset())
        return chosen is None or partition in chosen

    def require(self, splits: Sequence[Split]) -> None:
        """Refuse a topic or a partition that none of the sources has."""
        there = {(split.topic, split.partition) for split in splits}
        for topic, chosen in self.topics.items():
            mine = sorted(partition for name, partition in there if name == topic)
            if not mine or (chosen is not None and not chosen <= set(mine)):
                known = ", ".join(sorted({f"{name}:{partition}" for name, partition in there})) or "none"
                asked = topic if chosen is None else f"{topic}:{','.join(map(str, sorted(chosen)))}"
                raise ProjectError(
                    "unknown-partition",
                    f"the flow does not read {asked}",
                    hint=f"it reads: {known}",
                    exit_code=Exit.NOT_FOUND,
                )


def parse_scope(texts: Sequence[str]) -> SplitScope:
    """The scope that texts such as `orders` and `orders:0,2` mean; a ValueError says what was expected."""
    topics: dict[str, frozenset[int] | None] = {}
    for text in texts:
        topic, colon, listed = text.partition(":")
        numbers = [part.strip() for part in listed.split(",")]
        if not topic or (colon and not all(number.isdecimal() for number in numbers)):
            raise ValueError(f"'{text}' is not topic or topic:partition,partition")
        topics[topic] = frozenset(map(int, numbers)) if colon else None
    return SplitScope(topics)


def parse_time(text: str) -> datetime:
    """A time as people write it; without a zone it is UTC. A ValueError says that it is none."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def parse_offsets(text: str) -> Offsets:
    """Offsets from a file: JSON as positions are printed, or the lines `topic,partition,offset` of Kafka's tools.

    A ValueError says what was expected.
    """
    if text.lstrip().startswith("{"):
        return _from_json(json.loads(text))
    found: Offsets = {}
    for number, line in enumerate(text.splitlines(), start=1):
        parts = [part.strip().strip('"') for part in line.split(",")]
        if not line.strip() or parts[-3:] == ["topic", "partition", "offset"]:
            continue
        # Kafka's tools write the group first when there are several
        if len(parts) not in (3, 4) or not (parts[-2].isdecimal() and parts[-1].lstrip("-").isdecimal()):
            raise ValueError(f"line {number} is not topic,partition,offset: {line[:100]}")
        found.setdefault(parts[-3], {})[int(parts[-2])] = int(parts[-1])
    if not found:
        raise ValueError("there is no offset in it")
    return found


def _from_json(given: Any) -> Offsets:
    try:
        return {
            str(topic): {int(part): int(offset) for part, offset in parts.items()} for topic, parts in given.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError('it must look like {"topic": {"0": 12, "1": -2}}') from error


class Positions:
    """What a source knows about positions in it, asked without Spark.

    Subclass this for a source that can begin anywhere; as it is, a flow can only begin at the beginning again. It may
    keep connections until `close`. Not to be used by several threads at once.
    """

    comparable = False
    """Whether `reached` can tell which of two readers is further."""
    releases = False
    """Whether the source keeps records until all flows have read them, and `release` lets them go."""

    def __init__(self, label: str) -> None:
        self.label = label

    def of_checkpoint(self, end: Any) -> Position | None:
        """The position that Spark's record of a batch says, None when that is the record of another source."""
        return None

    def reached(self, end: Any) -> Reached | None:
        """How far Spark's record of a batch is, to be compared with another one of the same source part by part.

        None when that is the record of another source, or cannot be compared.
        """
        return None

    def moved(self, end: Any, to: Any) -> Any:
        """The record `end` of Spark as it is when the reader has come as far as `to`. Both are of this source."""
        return to

    def resolve(self, target: Target, current: Position | None, scope: SplitScope) -> Position | None:
        """The position a target means now, in all splits; splits out of scope stay at `current`.

        None is the beginning, for sources that can begin nowhere else.
        """
        if isinstance(target, Earliest) and not scope.topics:
            return None
        raise ProjectError(
            "rewind-unsupported",
            f"{self.label} can be read again from its beginning, but it cannot begin at: {target}",
            hint="--to earliest, or --to a savepoint, which holds the place in every source",
            exit_code=Exit.CONFLICT,
        )

    def measure(self, position: Position | None) -> list[Split]:
        """Every split with what can be read, and how far behind `position` is; nothing when it cannot be told."""
        return []

    def identities(self) -> dict[str, str]:
        """What would tell a topic from another one that was made anew under its name."""
        return {}

    def group(self, project: str, flow: str) -> str | None:
        """The name under which `publish` makes positions known, None when the system has no such thing."""
        return None

    def publish(self, group: str, position: Position) -> None:
        """Tell the system behind the source where the flow is, for the tools that its operators have."""

    def release(self, reached: Sequence[Position | None]) -> None:
        """All flows that read the source have come this far; None: one has not begun. What is before may go."""

    def close(self) -> None:
        """Let go of what was kept."""
