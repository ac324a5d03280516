"""Positions in sources: where a reader is, where it can be moved to, and how far it is behind.

A position is a JSON document that only its source interprets. It names the next record to read, for example
`{"orders": {"0": 12}}`.
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
"""The progress of a reader by part of a source; a greater tuple is further ahead."""


@dataclass(frozen=True)
class Split:
    """The current state of one part of a source that is read separately, such as a partition. None means unknown."""

    topic: str
    partition: int
    start: int
    """The oldest available record."""
    end: int
    """The position after the newest record."""
    position: int | None
    """The next record to read."""
    lag_s: float | None = None
    """The age of the oldest unread record in seconds; 0 when all records are read."""
    counts_records: bool = True
    """Whether offsets count records. They do not for a lake table, whose offsets are versions."""
    unread: int | None = None
    """The number of unread records, when the source knows it and it does not follow from the offsets."""

    @property
    def lag(self) -> int | None:
        """The number of unread records; None when it is unknown."""
        if self.unread is not None:
            return self.unread
        if self.position is None or not (self.counts_records or self.position >= self.end):
            return None
        return max(0, self.end - self.position)


@dataclass(frozen=True)
class Earliest:
    """The oldest available record."""

    def __str__(self) -> str:
        return "earliest"


@dataclass(frozen=True)
class Latest:
    """The end: only records that arrive from now on."""

    def __str__(self) -> str:
        return "latest"


@dataclass(frozen=True)
class Current:
    """The current position of the flow."""

    def __str__(self) -> str:
        return "the current position"


@dataclass(frozen=True)
class AtTime:
    """The first record at or after this time; the end when existing is none."""

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
    """A number of records forward, or back when negative."""

    records: int

    def __str__(self) -> str:
        return f"{abs(self.records)} records {'forward' if self.records >= 0 else 'back'}"


@dataclass(frozen=True)
class Explicit:
    """An offset for each named split (-2: earliest, -1: latest). Other splits keep their position."""

    offsets: Mapping[str, Mapping[int, int]]

    def __str__(self) -> str:
        return "explicit offsets"


Target = Earliest | Latest | Current | AtTime | AtOffset | ShiftBy | Explicit


@dataclass(frozen=True)
class SplitScope:
    """The splits that an operation applies to: all, or those of some topics."""

    topics: Mapping[str, frozenset[int] | None] = field(default_factory=dict)

    def holds(self, topic: str, partition: int) -> bool:
        """Return whether the scope includes a split."""
        if not self.topics:
            return True
        chosen = self.topics.get(topic, frozenset())
        return chosen is None or partition in chosen

    def require(self, splits: Sequence[Split]) -> None:
        """Raise ProjectError `unknown-partition` when the scope names a topic or partition that is not in `splits`."""
        existing = {(split.topic, split.partition) for split in splits}
        for topic, chosen in self.topics.items():
            partitions = sorted(partition for name, partition in existing if name == topic)
            if not partitions or (chosen is not None and not chosen <= set(partitions)):
                known = ", ".join(sorted({f"{name}:{partition}" for name, partition in existing})) or "none"
                requested = topic if chosen is None else f"{topic}:{','.join(map(str, sorted(chosen)))}"
                raise ProjectError(
                    "unknown-partition",
                    f"the flow does not read {requested}",
                    hint=f"it reads: {known}",
                    exit_code=Exit.NOT_FOUND,
                )


def parse_scope(texts: Sequence[str]) -> SplitScope:
    """Parse a scope from texts such as `orders` and `orders:0,2`. Raises ValueError, which names the expected form."""
    topics: dict[str, frozenset[int] | None] = {}
    for text in texts:
        topic, colon, listed = text.partition(":")
        numbers = [part.strip() for part in listed.split(",")]
        if not topic or (colon and not all(number.isdecimal() for number in numbers)):
            raise ValueError(f"'{text}' is not topic or topic:partition,partition")
        topics[topic] = frozenset(map(int, numbers)) if colon else None
    return SplitScope(topics)


def parse_time(text: str) -> datetime:
    """Parse an ISO 8601 time; without a zone it is UTC. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def parse_offsets(text: str) -> Offsets:
    """Parse offsets: JSON in the printed form of positions, or the lines `topic,partition,offset` of Kafka's tools.

    Raises ValueError, which names the expected form.
    """
    if text.lstrip().startswith("{"):
        return _from_json(json.loads(text))
    offsets: Offsets = {}
    for number, line in enumerate(text.splitlines(), start=1):
        parts = [part.strip().strip('"') for part in line.split(",")]
        if not line.strip() or parts[-3:] == ["topic", "partition", "offset"]:
            continue
        # Kafka's tools write the consumer group first when there are several
        if len(parts) not in (3, 4) or not (parts[-2].isdecimal() and parts[-1].lstrip("-").isdecimal()):
            raise ValueError(f"line {number} is not topic,partition,offset: {line[:100]}")
        offsets.setdefault(parts[-3], {})[int(parts[-2])] = int(parts[-1])
    if not offsets:
        raise ValueError("it contains no offset")
    return offsets


def _from_json(document: Any) -> Offsets:
    try:
        return {
            str(topic): {int(part): int(offset) for part, offset in parts.items()} for topic, parts in document.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError('it must look like {"topic": {"0": 12, "1": -2}}') from error


class Positions:
    """The positions of one source, without Spark.

    Subclass this for a source that can start at any position. With this base class, a flow can only restart from the
    beginning. An instance may keep connections open until `close`. It is not safe for use by several threads.
    """

    comparable = False
    """Whether `reached` can compare the progress of two readers."""
    releases = False
    """Whether the source keeps records until all flows have read them and `release` is called."""

    def __init__(self, label: str) -> None:
        self.label = label

    def of_checkpoint(self, end: Any) -> Position | None:
        """Return the position of an entry of Spark's offset log; None when the entry belongs to another source."""
        return None

    def reached(self, end: Any) -> Reached | None:
        """Return the progress of an entry of Spark's offset log, for comparison with another entry of this source.

        None when the entry belongs to another source, or cannot be compared.
        """
        return None

    def moved(self, end: Any, to: Any) -> Any:
        """Return the entry `end` of Spark's offset log advanced to the entry `to`. Both belong to this source."""
        return to

    def resolve(self, target: Target, current: Position | None, scope: SplitScope) -> Position | None:
        """Return the position of a target at this moment, for all splits. Splits outside the scope keep `current`.

        None means the beginning, for sources that can only start there. Raises ProjectError `rewind-unsupported` when
        the source cannot start at the target.
        """
        if isinstance(target, Earliest) and not scope.topics:
            return None
        raise ProjectError(
            "rewind-unsupported",
            f"{self.label} can be read again from the beginning, but not from: {target}",
            hint="use --to earliest, or --to a savepoint, which holds the position of every source",
            exit_code=Exit.CONFLICT,
        )

    def measure(self, position: Position | None) -> list[Split]:
        """Return the state of every split and its lag behind `position`; an empty list when it is unknown."""
        return []

    def identities(self) -> dict[str, str]:
        """Return an id per topic. A topic that was deleted and created again has another id."""
        return {}

    def group(self, project: str, flow: str) -> str | None:
        """Return the consumer group for `publish`; None when the system has no consumer groups."""
        return None

    def publish(self, group: str, position: Position) -> None:
        """Commit the position of the flow to the source system, so that the system's own tools show it."""

    def release(self, reached: Sequence[Position | None]) -> None:
        """Release the records that all flows have read.

        `reached` has the position of every flow that reads the source; None for a flow that has not started.
        """

    def close(self) -> None:
        """Close connections."""
