"""Keeps rows on disk while a stateful operator decides about them.

Rows that go through a shuffle and a stateful operator are copied about ten times. Where all tasks share a disk, each
task writes its rows to a file instead, and only a note with their address takes that path; elsewhere the note contains
the rows. Files live as long as their batch, and at most as long as the process.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.core.processor import StepClock, StepContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Spill:
    """The spill folder of one step. Pickled to the tasks."""

    folder: str | None
    """None: the notes contain the rows."""
    clock: StepClock

    @staticmethod
    def of(rows: DataFrame, at: StepContext) -> Spill:
        """Files in Spark's folder for temporary files, if all tasks of a stream share it."""
        conf = rows.sparkSession.sparkContext.getConf()
        shared = conf.get("spark.local.dir") if conf.get("spark.master", "").startswith("local") else None
        if shared is None or not at.streaming:
            return Spill(None, at.clock)
        place = Path(shared.partition(",")[0]) / "parked" / at.flow / at.generation / at.step
        return Spill(str(place), at.clock)

    @contextmanager
    def opened(self, schema: pa.Schema) -> Iterator[SpillFile]:
        if self.folder is None:
            yield SpillFile(None, None)
            return
        place = Path(self.folder, str(self.clock.number()))
        place.mkdir(parents=True, exist_ok=True)
        self._clear(place)
        # a repeated task, and a task of a repeated batch, must not share a file
        path = place / f"{uuid.uuid4().hex}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            yield SpillFile(str(path), writer)

    def _clear(self, own: Path) -> None:
        """Remove the files of other batches: batches run one after the other."""
        for other in own.parent.iterdir():
            if other.name != own.name:
                shutil.rmtree(other, ignore_errors=True)


@dataclass
class SpillFile:
    """The spilled rows of one task."""

    path: str | None
    writer: pa.RecordBatchFileWriter | None
    _batches: int = 0

    def add(self, rows: pa.RecordBatch, parts: list[np.ndarray]) -> Iterator[tuple[bytes, np.ndarray]]:
        """Write a batch. Returns a note for each part of its rows, and their places in the batch that it addresses."""
        if self.path is None or self.writer is None:
            for part in parts:
                yield _INLINE + rows.take(pa.array(part)).serialize().to_pybytes(), np.arange(len(part))
            return
        self.writer.write_batch(rows)
        note = _IN_FILE + f"{self._batches} {self.path}".encode()
        self._batches += 1
        for part in parts:
            yield note, part


_INLINE, _IN_FILE = b"h", b"t"


@dataclass
class Fetcher:
    """Reads spilled rows in a task."""

    schema: pa.Schema
    _files: dict[str, pa.RecordBatchFileReader] = field(default_factory=dict)

    def fetch(self, note: bytes) -> pa.RecordBatch:
        if note[:1] == _INLINE:
            return pa.ipc.read_record_batch(pa.py_buffer(note)[1:], self.schema)
        number, _, path = note[1:].decode().partition(" ")
        if path not in self._files:
            self._files[path] = pa.ipc.open_file(pa.memory_map(path))
        return self._files[path].get_batch(int(number))
