"""Where flows are in their sources: now, from their checkpoints, and before, from a log of our own.

Spark keeps the positions of the last hundred batches, which at one batch a second is not two minutes. The log is kept
by time instead.
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

KEEP = timedelta(days=7)
MAX_BYTES = 4_000_000
_LEAST_SECONDS = 1.0
# nothing can be appended to an object: it is put anew with each entry
_LEAST_SECONDS_APART, _MAX_OBJECT_BYTES = 10.0, 400_000
# entries this old are thinned to one in so many seconds
_THINNING = ((86_400, 600), (3_600, 60))

ByInput = dict[str, Position | None]


def input_positions(flow: FlowPlan, context: Context) -> dict[str, Positions]:
    """What is known about positions in each input of a flow. Close them after use."""
    from headrace.sources.lake import LakeSource

    found: dict[str, Positions] = {}
    for one in flow.all_inputs():
        if isinstance(one, StreamInput):
            known = positions_of(one.spec.source, context)
            found[one.name] = known if one.spec.backfill is None else BackfilledPositions(known)
        elif isinstance(one, LakeInput):
            found[one.name] = LakeSource(path=one.path).positions(context)
        elif isinstance(one, TableInput):
            found[one.name] = TablePositions(one.name, one.spec.source.group, context)
    return found


def positions_at(inputs: Mapping[str, Positions], ends: Sequence[Any]) -> ByInput:
    """The position of each input in one of Spark's records.

    Spark writes ends without names: a source knows its own by what is in it. When a flow reads one topic twice, the
    one that is behind counts, so that nothing is left out.
    """
    found: ByInput = {}
    for name, known in inputs.items():
        mine = [position for end in ends if end is not None and (position := known.of_checkpoint(end)) is not None]
        found[name] = _behind(mine) if mine else None
    return found


def _behind(positions: Sequence[Position]) -> Position:
    """The lowest number in every place."""
    first = positions[0]
    if len(positions) == 1 or not all(isinstance(part, Mapping) for part in first.values()):
        return first
    topics = {topic for position in positions for topic in position}
    return {topic: _lowest([position.get(topic, {}) for position in positions]) for topic in topics}


def _lowest(parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {p: min(part[p] for part in parts if p in part) for p in {p for part in parts for p in part}}


def committed_positions(inputs: Mapping[str, Positions], generation: Generation) -> ByInput:
    """Where a generation is: after its last committed batch, or where it is going to begin; None when unknown."""
    record = generation.checkpoint.committed()
    start = generation.manifest.start
    if record is None:
        return {name: start.get(name) for name in inputs}
    at = positions_at(inputs, record.ends)
    return {name: start.get(name) if position is None else position for name, position in at.items()}


@dataclass(frozen=True)
class Moment:
    """One entry of a log of positions."""

    time: float
    batch: int
    ends: tuple[Any, ...]
    """As Spark wrote them."""
    lag: int | None
    """How many records were unread then, where the sources tell."""


def log_file(generation: Generation) -> StatePath:
    """Where the log of a generation is."""
    return generation.folder / "positions.jsonl"


def read_log(generation: Generation, newest_bytes: int | None = None) -> list[Moment]:
    """The entries, oldest first, or those in the last part of the file; lines that are cut off are left out."""
    try:
        with log_file(generation).open("rb") as file:
            if newest_bytes is not None:
                file.seek(-min(newest_bytes, file.seek(0, os.SEEK_END)), os.SEEK_END)
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    return list(_moments(text))


def _moments(text: str) -> Iterator[Moment]:
    for line in text.splitlines():
        try:
            said = json.loads(line)
            yield Moment(said["t"], said["batch"], tuple(said["ends"]), said["lag"])
        except (ValueError, KeyError, TypeError):
            continue


def known_batches(generation: Generation) -> dict[int, tuple[Any, ...]]:
    """The ends of all committed batches of a generation that are still known."""
    found = {moment.batch: moment.ends for moment in read_log(generation)}
    last = generation.checkpoint.committed()
    if last is not None:
        for number in range(last.batch_id, -1, -1):
            record = generation.checkpoint.batch(number)
            if record is None:
                break
            found[number] = record.ends
    return found


@dataclass
class PositionLog:
    """Observer that writes down where each flow is after its batches, at most once a second.

    Kept for `keep`, thinner with age, and never more than `max_bytes` for one generation.
    """

    state: StateDir
    keep: timedelta = KEEP
    max_bytes: int = MAX_BYTES
    clock: Any = time.time
    _last: dict[str, float] = field(default_factory=dict)

    def batch_done(self, flow: FlowPlan, progress: Mapping[str, Any]) -> None:
        """Add an entry."""
        generation = self.state.generations(flow.name).current()
        record = None if generation is None else generation.checkpoint.committed()
        now = self.clock()
        if generation is None or record is None or now - self._last.get(generation.id, 0.0) < self._least_seconds:
            return
        self._last[generation.id] = now
        entry = {"t": round(now, 3), "batch": record.batch_id, "ends": list(record.ends), "lag": lag_of(progress)}
        if _append(log_file(generation), json.dumps(entry, separators=(",", ":")) + "\n") > self._max_bytes:
            self._shrink(generation, now)

    def close(self) -> None:
        """Nothing is held back."""

    @property
    def _least_seconds(self) -> float:
        return _LEAST_SECONDS_APART if isinstance(self.state.root, ObjectPath) else _LEAST_SECONDS

    @property
    def _max_bytes(self) -> int:
        return min(self.max_bytes, _MAX_OBJECT_BYTES) if isinstance(self.state.root, ObjectPath) else self.max_bytes

    def _shrink(self, generation: Generation, now: float) -> None:
        kept = thinned(read_log(generation), now, self.keep.total_seconds())
        lines = [json.dumps({"t": m.time, "batch": m.batch, "ends": m.ends, "lag": m.lag}) for m in kept]
        # half of the room, so that this is not done again at once
        while len(lines) > 1 and sum(map(len, lines)) > self._max_bytes // 2:
            lines = [*lines[: len(lines) // 2 : 2], *lines[len(lines) // 2 :]] if len(lines) > 4 else lines[1:]
        write_atomically(log_file(generation), "".join(f"{line}\n" for line in lines).encode())


def thinned(moments: Sequence[Moment], now: float, keep_seconds: float) -> list[Moment]:
    """The entries that are worth keeping: none older than that, and fewer the older they are."""
    kept: list[Moment] = []
    for moment in moments:
        age = now - moment.time
        if age > keep_seconds:
            continue
        step = next((seconds for older, seconds in _THINNING if age > older), 0)
        if not step or not kept or int(moment.time // step) != int(kept[-1].time // step):
            kept.append(moment)
    return kept


def lag_of(progress: Mapping[str, Any]) -> int | None:
    """How many records the sources had that were not read, as its report of a batch says; None when unknown."""
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


def _offsets(given: Any) -> dict[str, dict[str, int]] | None:
    """Offsets of Kafka in a report, which may be text."""
    try:
        said = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return None
    if isinstance(said, dict) and said and all(isinstance(part, dict) for part in said.values()):
        return said
    return None


def _append(file: StatePath, line: str) -> int:
    """Add a line; how large the file is then."""
    if isinstance(file, ObjectPath):
        before = file.read_bytes() if file.is_file() else b""
        file.put(before + line.encode())
        return len(before) + len(line)
    with file.open("a", encoding="utf-8") as out:
        # a line that was cut off must not take the next one with it
        out.write(("\n" if _is_cut_off(file) else "") + line)
        return out.tell()


def _is_cut_off(file: Path) -> bool:
    with file.open("rb") as text:
        if text.seek(0, os.SEEK_END) == 0:
            return False
        text.seek(-1, os.SEEK_END)
        return text.read(1) != b"\n"
