"""The positions of flows in their sources: the current ones from checkpoints, earlier ones from a position log.

Spark keeps the positions of the last hundred batches, which is less than two minutes at one batch per second. The
position log is kept by time instead.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from headrace.core.context import Context
from headrace.core.files.objects import ObjectPath
from headrace.core.files.state_files import StatePath, write_atomically
from headrace.core.positions import Position, Positions
from headrace.core.source import positions_of
from headrace.engine.inputs.backfill import BackfilledPositions
from headrace.engine.state.generations import Generation
from headrace.engine.state.state import StateDir
from headrace.engine.tables.table_logs import TablePositions
from headrace.plan.model import FlowPlan, LakeInput, StreamInput, TableInput
from headrace.sources.lake import LakeSource

KEEP = timedelta(days=7)
MAX_BYTES = 4_000_000
_MIN_SECONDS = 1.0
# an object cannot be appended to: it is written again with each entry
_MIN_SECONDS_OBJECT, _MAX_OBJECT_BYTES = 10.0, 400_000
# (age, seconds): of entries older than this age, one per so many seconds is kept
_THINNING = ((86_400, 600), (3_600, 60))

PositionsByInput = dict[str, Position | None]


def input_positions(flow: FlowPlan, context: Context) -> dict[str, Positions]:
    """The positions of each input of a flow. Close them after use."""
    inputs: dict[str, Positions] = {}
    for item in flow.all_inputs():
        if isinstance(item, StreamInput):
            known = positions_of(item.spec.source, context)
            inputs[item.name] = known if item.spec.backfill is None else BackfilledPositions(known)
        elif isinstance(item, LakeInput):
            inputs[item.name] = LakeSource(path=item.path).positions(context)
        elif isinstance(item, TableInput):
            inputs[item.name] = TablePositions(item.name, item.spec.source.group, context)
    return inputs


def positions_at(inputs: Mapping[str, Positions], ends: Sequence[Any]) -> PositionsByInput:
    """The position of each input in one entry of Spark's offset log.

    Spark writes the ends without names, so each source recognises its own by their content. If a flow reads one topic
    twice, the reader that is behind counts, so that no record is skipped.
    """
    positions: PositionsByInput = {}
    for name, known in inputs.items():
        mine = [position for end in ends if end is not None and (position := known.of_checkpoint(end)) is not None]
        positions[name] = _lowest_position(mine) if mine else None
    return positions


def _lowest_position(positions: Sequence[Position]) -> Position:
    """The lowest offset of every partition."""
    first = positions[0]
    if len(positions) == 1 or not all(isinstance(part, Mapping) for part in first.values()):
        return first
    topics = {topic for position in positions for topic in position}
    return {topic: _lowest_offsets([position.get(topic, {}) for position in positions]) for topic in topics}


def _lowest_offsets(parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {p: min(part[p] for part in parts if p in part) for p in {p for part in parts for p in part}}


def committed_positions(inputs: Mapping[str, Positions], generation: Generation) -> PositionsByInput:
    """The positions after the last committed batch of a generation, or its start positions; None if unknown."""
    record = generation.checkpoint.committed()
    start = generation.manifest.start
    if record is None:
        return {name: start.get(name) for name in inputs}
    at = positions_at(inputs, record.ends)
    return {name: start.get(name) if position is None else position for name, position in at.items()}


@dataclass(frozen=True)
class PositionEntry:
    """One entry of a position log."""

    time: float
    batch: int
    ends: tuple[Any, ...]
    """The positions as Spark writes them."""
    lag: int | None
    """Unread records at that time, if the sources report them."""


def log_file(generation: Generation) -> StatePath:
    return generation.folder / "positions.jsonl"


def read_log(generation: Generation, newest_bytes: int | None = None) -> list[PositionEntry]:
    """The entries, oldest first; with `newest_bytes` only those at the end of the file. Skips incomplete lines."""
    try:
        with log_file(generation).open("rb") as file:
            if newest_bytes is not None:
                file.seek(-min(newest_bytes, file.seek(0, os.SEEK_END)), os.SEEK_END)
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    return list(_entries(text))


def _entries(text: str) -> Iterator[PositionEntry]:
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            yield PositionEntry(entry["t"], entry["batch"], tuple(entry["ends"]), entry["lag"])
        except (ValueError, KeyError, TypeError):
            continue


def known_batch_ends(generation: Generation) -> dict[int, tuple[Any, ...]]:
    """The end positions of all committed batches of a generation that are still known, by batch."""
    batch_ends = {entry.batch: entry.ends for entry in read_log(generation)}
    last = generation.checkpoint.committed()
    if last is not None:
        for number in range(last.batch_id, -1, -1):
            record = generation.checkpoint.batch(number)
            if record is None:
                break
            batch_ends[number] = record.ends
    return batch_ends


@dataclass
class PositionLog:
    """Observer that logs the positions of each flow after its batches, at most once per second.

    Entries are kept for `keep`, fewer of them with age, and at most `max_bytes` for one generation.
    """

    state: StateDir
    keep: timedelta = KEEP
    max_bytes: int = MAX_BYTES
    clock: Any = time.time
    _last: dict[str, float] = field(default_factory=dict)

    def batch_done(self, flow: FlowPlan, progress: Mapping[str, Any]) -> None:
        generation = self.state.generations(flow.name).current()
        record = None if generation is None else generation.checkpoint.committed()
        now = self.clock()
        if generation is None or record is None or now - self._last.get(generation.id, 0.0) < self._min_seconds:
            return
        self._last[generation.id] = now
        entry = {
            "t": round(now, 3),
            "batch": record.batch_id,
            "ends": list(record.ends),
            "lag": unread_records(progress),
        }
        if _append(log_file(generation), json.dumps(entry, separators=(",", ":")) + "\n") > self._max_bytes:
            self._shrink(generation, now)

    def close(self) -> None:
        """Every entry is already written."""

    @property
    def _min_seconds(self) -> float:
        return _MIN_SECONDS_OBJECT if isinstance(self.state.root, ObjectPath) else _MIN_SECONDS

    @property
    def _max_bytes(self) -> int:
        return min(self.max_bytes, _MAX_OBJECT_BYTES) if isinstance(self.state.root, ObjectPath) else self.max_bytes

    def _shrink(self, generation: Generation, now: float) -> None:
        entries = thin_entries(read_log(generation), now, self.keep.total_seconds())
        lines = [json.dumps({"t": e.time, "batch": e.batch, "ends": e.ends, "lag": e.lag}) for e in entries]
        # down to half of the limit, so that the next entry does not shrink the log again
        while len(lines) > 1 and sum(map(len, lines)) > self._max_bytes // 2:
            lines = [*lines[: len(lines) // 2 : 2], *lines[len(lines) // 2 :]] if len(lines) > 4 else lines[1:]
        write_atomically(log_file(generation), "".join(f"{line}\n" for line in lines).encode())


def thin_entries(entries: Sequence[PositionEntry], now: float, keep_seconds: float) -> list[PositionEntry]:
    """Drop entries older than `keep_seconds`, and thin the others: the older, the fewer."""
    thinned: list[PositionEntry] = []
    for entry in entries:
        age = now - entry.time
        if age > keep_seconds:
            continue
        step = next((seconds for older, seconds in _THINNING if age > older), 0)
        if not step or not thinned or int(entry.time // step) != int(thinned[-1].time // step):
            thinned.append(entry)
    return thinned


def unread_records(progress: Mapping[str, Any]) -> int | None:
    """Unread records of the sources in the report of a batch; None if unknown."""
    total, known = 0, False
    for source in progress["sources"]:
        latest, end = (_offsets(source[name]) for name in ("latestOffset", "endOffset"))
        if latest is not None and end is not None:
            known = True
            total += sum(
                max(0, newest - end.get(topic, {}).get(p, newest))
                for topic, parts in latest.items()
                for p, newest in parts.items()
            )
    return total if known else None


def _offsets(value: Any) -> dict[str, dict[str, int]] | None:
    """The Kafka offsets of a report, which may be JSON text; None for other sources."""
    try:
        offsets = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None
    if isinstance(offsets, dict) and offsets and all(isinstance(part, dict) for part in offsets.values()):
        return offsets
    return None


def _append(file: StatePath, line: str) -> int:
    """Append a line; returns the new size of the file."""
    if isinstance(file, ObjectPath):
        before = file.read_bytes() if file.is_file() else b""
        file.put(before + line.encode())
        return len(before) + len(line)
    with file.open("a", encoding="utf-8") as out:
        # an incomplete line must not spoil the next one
        out.write(("\n" if _is_incomplete(file) else "") + line)
        return out.tell()


def _is_incomplete(file: Path) -> bool:
    with file.open("rb") as text:
        if text.seek(0, os.SEEK_END) == 0:
            return False
        text.seek(-1, os.SEEK_END)
        return text.read(1) != b"\n"
