"""Automatic upkeep of the state folder while flows run: deletes old generations and merges small files."""

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
_MIN_AGE_SECONDS = 600.0
_MIN_FILES = 50
_MERGED_BYTES = 32 << 20


@dataclass
class Housekeeper:
    """Observer that cleans up after a flow every ten minutes with a batch."""

    state: StateDir
    keep_generations: timedelta = KEEP_GENERATIONS
    _due: dict[str, float] = field(default_factory=dict)

    def batch_done(self, flow: FlowPlan, progress: Mapping[str, Any]) -> None:
        """Clean up if it is due; the first time is right after the start."""
        now = time.monotonic()
        if now >= self._due.get(flow.name, 0.0):
            self._due[flow.name] = now + _EVERY_SECONDS
            self.clean_up(flow.name)

    def close(self) -> None:
        """Nothing is open."""

    def clean_up(self, flow: str) -> None:
        remove_old_generations(self.state.generations(flow), self.keep_generations)
        merge_files(self.state.dead_letters / flow, LETTERS)
        merge_files(self.state.late / flow, LATE_ROWS)


def remove_old_generations(generations: Generations, keep: timedelta) -> list[str]:
    """Delete generations that have not been current for `keep`; returns their ids.

    The current generation, the candidate, those whose batches the current one continues and the one before it are never
    deleted. Savepoints have their own copies and stay.
    """
    current = generations.current()
    if current is None:
        return []
    candidate = generations.candidate()
    needed = {current.manifest.parent, candidate and candidate.id, *(each.id for each, _ in generations.lineage())}
    removed = []
    for generation, ended_at in _with_ends(generations.all()):
        if generation.id not in needed and ended_at is not None and datetime.now(ended_at.tzinfo) - ended_at > keep:
            generations.remove(generation)
            removed.append(generation.id)
    return removed


def _with_ends(generations: Sequence[Generation]) -> Iterator[tuple[Generation, datetime | None]]:
    """Each generation with the time at which the next one was created."""
    created = [datetime.fromisoformat(generation.manifest.created_at) for generation in generations]
    return zip(generations, [*created[1:], None], strict=True)


def merge_files(folder: StatePath, schema: pa.Schema) -> int:
    """Merge the small files below a folder, stream by stream; returns by how many the number of files shrinks.

    Does nothing while the files are read, nor on an object store, where readers are unknown. Each record has an id and
    readers count each id once, so a crash between writing the merged file and deleting the others duplicates nothing.
    """
    fewer = 0
    if not folder.is_dir():
        return fewer
    with changing(folder) as exclusive:
        for stream in in_order(folder.iterdir()) if exclusive else ():
            fewer += _merge(stream, schema) if stream.is_dir() else 0
    return fewer


def _merge(stream: StatePath, schema: pa.Schema) -> int:
    before = time.time() - _MIN_AGE_SECONDS
    small: list[StatePath] = []
    size = 0
    for file in in_order(stream.glob("[!.]*.parquet")):
        stat = file.stat()
        if stat.st_mtime < before and stat.st_size < _MERGED_BYTES // 2 and size < _MERGED_BYTES:
            small.append(file)
            size += stat.st_size
    if len(small) < _MIN_FILES:
        return 0
    merged = stream / f"merged-{uuid.uuid4().hex}.parquet"
    write_table(merged, read_tables(small, schema), compression="zstd")
    for file in small:
        file.unlink()
    return len(small) - 1
