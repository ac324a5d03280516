"""Replays an archive: sends the records of some days to a Kafka topic, each exactly once.

The list of records is stored first, in portions of some ten thousand records. Each portion is one Kafka transaction
that also holds the number of the portion, as a batch of an exactly-once sink does. After a crash the next run skips
the portions that are already committed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import cached_property
from itertools import groupby
from typing import Any

import msgspec
import pyarrow as pa

from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError
from headrace.core.files.state_files import StatePath, names_in, write_atomically, write_new
from headrace.sinks.archive.read import folders, located, read_parts
from headrace.sinks.kafka.transactions import TransactionalWrite

_PORTION = 20_000
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ReplayOrder:
    """The records to replay (archive, topic, first and last day) and the target topic."""

    path: str
    """Of the archive."""
    topic: str
    first: str
    last: str
    into: str
    key: str | None = None

    @property
    def id(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class ArchiveReplayRun:
    """One run of an order, with the archive parts that existed when it started."""

    order: ReplayOrder
    run: int
    parts: tuple[tuple[str, str, int], ...]
    """Folder, name and number of records."""
    portions: tuple[tuple[int, int], ...]
    """For each transaction, the index of its first part and the index after its last."""
    done: bool = False

    @property
    def records(self) -> int:
        return sum(records for _, _, records in self.parts)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> ArchiveReplayRun:
        parts, portions = (tuple(tuple(item) for item in fields[name]) for name in ("parts", "portions"))
        return ArchiveReplayRun(ReplayOrder(**fields["order"]), fields["run"], parts, portions, fields["done"])


@dataclass(frozen=True)
class ArchiveReplayer:
    """Executes one order, from one archive into one Kafka cluster."""

    order: ReplayOrder
    root: StatePath
    context: Context
    properties: Mapping[str, str]

    @cached_property
    def _folder(self) -> StatePath:
        return self.context.state_path / "replays" / self.order.id

    def plan(self, *, again: bool = False) -> ArchiveReplayRun:
        """The last run, or a new one if there is none or with `again`."""
        last = self._last()
        if last is not None and not again:
            return last
        parts = tuple(self._parts())
        if not parts:
            raise ProjectError(
                "archive-empty",
                f"the archive has no record of {self.order.topic} from {self.order.first} to {self.order.last}",
                hint="list its contents: headrace archive show",
                exit_code=Exit.NOT_FOUND,
            )
        return ArchiveReplayRun(self.order, last.run + 1 if last else 1, parts, tuple(_portions(parts)))

    def execute(self, replay: ArchiveReplayRun, progress: Progress) -> int:
        """Send the portions that are not sent yet; returns the number of records sent."""
        write_new(self._file(replay), json.dumps(replay.to_json()).encode())
        sent = seen = 0
        for number, (begin, end) in enumerate(replay.portions if not replay.done else ()):
            sent += self._send(replay, number, replay.parts[begin:end])
            seen += sum(records for _, _, records in replay.parts[begin:end])
            progress(seen, replay.records)
        write_atomically(self._file(replay), json.dumps(replace(replay, done=True).to_json()).encode())
        return sent

    def _send(self, replay: ArchiveReplayRun, number: int, parts: tuple[tuple[str, str, int], ...]) -> int:
        identity = f"headrace.replay.{self.order.id}.{replay.run}"
        write = TransactionalWrite(self.properties, identity, self.order.into, number)
        counts = [row for batch in write(self._batches(parts)) for row in batch.to_pylist()]
        return sum(row["rows"] for row in counts)

    def _batches(self, parts: tuple[tuple[str, str, int], ...]) -> Iterator[pa.RecordBatch]:
        for folder, group in groupby(parts, key=lambda part: part[0]):
            for _, lines in read_parts(self.root / folder, [name for _, name, _ in group]):
                yield pa.RecordBatch.from_pydict(
                    {
                        "writer": pa.repeat(pa.scalar(0, pa.int32()), len(lines)),
                        "key": pa.array([self._key(line) for line in lines], pa.binary()),
                        "value": pa.array(lines, pa.binary()),
                    }
                )

    def _key(self, line: bytes) -> bytes | None:
        """The text at the path of the key; None for a record without it."""
        if self.order.key is None:
            return None
        try:
            value = msgspec.json.decode(line)
            for step in self.order.key.split("."):
                value = value[step]
        except (msgspec.DecodeError, KeyError, TypeError):
            return None
        return None if value is None else str(value).encode()

    def _parts(self) -> Iterator[tuple[str, str, int]]:
        first, last = date.fromisoformat(self.order.first), date.fromisoformat(self.order.last)
        for folder in folders(self.root, [self.order.topic], first, last):
            for entry in located(self.root / folder).values():
                yield folder, entry.part.name, entry.part.records

    def _last(self) -> ArchiveReplayRun | None:
        runs = [int(name.removesuffix(".json")) for name in names_in(self._folder) if name.endswith(".json")]
        file = self._folder / f"{max(runs, default=0)}.json"
        return ArchiveReplayRun.from_json(json.loads(file.read_bytes())) if runs else None

    def _file(self, replay: ArchiveReplayRun) -> StatePath:
        return self._folder / f"{replay.run}.json"


def _portions(parts: tuple[tuple[str, str, int], ...]) -> Iterator[tuple[int, int]]:
    begin = records = 0
    for number, (_, _, count) in enumerate(parts):
        records += count
        if records >= _PORTION or number == len(parts) - 1:
            yield begin, number + 1
            begin, records = number + 1, 0
