"""Upkeep of the state folder, done by itself while flows run: old generations go, small files are merged."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from headrace.core.files.state_files import StatePath, in_order
from headrace.engine.letters.dead_letters import SCHEMA as LETTERS
from headrace.engine.letters.late_rows import SCHEMA as LATE_ROWS
from headrace.engine.state.generations import Generation, Generations
from headrace.engine.state.locks import changing
from headrace.engine.state.parquet_files import read_tables, write_table
from headrace.engine.state.state import StateDir
from headrace.plan.model import FlowPlan

KEEP_GENERATIONS = timedelta(days=30)
_EVERY_SECONDS = 600.0
# a task that is still running may write its file again
_SETTLED_SECONDS = 600.0
_MANY_FILES = 50
_MERGED_BYTES = 32 << 20


@dataclass
class Housekeeper:
    """Observer that tidies up after a flow every ten minutes in which it has done something."""

    state: StateDir
    keep_generations: timedelta = KEEP_GENERATIONS
    _due: dict[str, float] = field(default_factory=dict)

    def batch_done(self, flow: FlowPlan, progress: Mapping[str, Any]) -> None:
        """Tidy up when it is due; the first time soon after the start."""
        now = time.monotonic()
        if now >= self._due.get(flow.name, 0.0):
            self._due[flow.name] = now + _EVERY_SECONDS
            self.tidy(flow.name)

    def close(self) -> None:
        """Nothing is left open."""

    def tidy(self, flow: str) -> None:
        """Do all that is due for a flow."""
        remove_old_generations(self.state.generations(flow), self.keep_generations)
        merge_files(self.state.dead_letters / flow, LETTERS)
        merge_files(self.state.late / flow, LATE_ROWS)


def remove_old_generations(generations: Generations, keep: timedelta) -> list[str]:
    """Remove the generations that were left that long ago, but never the current one, those it goes on from and the
    one before it.

    Savepoints have copies of their own and stay. Returns what was removed.
    """
    current = generations.current()
    if current is None:
        return []
    candidate = generations.candidate()
    kept = {current.manifest.parent, candidate and candidate.id, *(one.id for one, _last in generations.lineage())}
    removed = []
    for generation, left_at in _with_ends(generations.all()):
        if generation.id not in kept and left_at is not None and datetime.now(left_at.tzinfo) - left_at > keep:
            generations.remove(generation)
            removed.append(generation.id)
    return removed


def _with_ends(generations: Sequence[Generation]) -> Iterator[tuple[Generation, datetime | None]]:
    """Each with the time at which the next one was made."""
    begun = [datetime.fromisoformat(one.manifest.created_at) for one in generations]
    return zip(generations, [*begun[1:], None], strict=True)


def merge_files(folder: StatePath, schema: pa.Schema) -> int:
    """Merge the small files below a folder, stream by stream. Returns how many files there are fewer.

    Put off while somebody reads them, and not done on an object store, where nobody can tell. Each record has an id and
    reading counts each id once, so being cut off between writing the merged file and removing the others doubles
    nothing.
    """
    fewer = 0
    if not folder.is_dir():
        return fewer
    with changing(folder) as alone:
        for stream in in_order(folder.iterdir()) if alone else ():
            fewer += _merge(stream, schema) if stream.is_dir() else 0
    return fewer


def _merge(stream: StatePath, schema: pa.Schema) -> int:
    before = time.time() - _SETTLED_SECONDS
    chosen: list[StatePath] = []
    size = 0
    for file in in_order(stream.glob("[!.]*.parquet")):
        about = file.stat()
        if about.st_mtime < before and about.st_size < _MERGED_BYTES // 2 and size < _MERGED_BYTES:
            chosen.append(file)
            size += about.st_size
    if len(chosen) < _MANY_FILES:
        return 0
    merged = stream / f"merged-{uuid.uuid4().hex}.parquet"
    write_table(merged, read_tables(chosen, schema), compression="zstd")
    for file in chosen:
        file.unlink()
    return len(chosen) - 1
