"""Where rows wait while others decide about them.

Rows that go through a shuffle and a stateful operator are copied some ten times on their way. Where all tasks see the
same disk they wait in a file instead, one for each task, and only a note of where they are goes that way; elsewhere the
note has the rows in it. Files live as long as their batch, and end with the process at the latest.
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
class Parking:
    """The place for the rows of one step. Pickled to the tasks."""

    folder: str | None
    """None: rows are written into the notes."""
    clock: StepClock

    @staticmethod
    def of(rows: DataFrame, at: StepContext) -> Parking:
        """Files, where the tasks of a stream share the folder for what Spark itself keeps during a batch."""
        conf = rows.sparkSession.sparkContext.getConf()
        shared = conf.get("spark.local.dir") if conf.get("spark.master", "").startswith("local") else None
        if shared is None or not at.streaming:
            return Parking(None, at.clock)
        place = Path(shared.partition(",")[0]) / "parked" / at.flow / at.generation / at.step
        return Parking(str(place), at.clock)

    @contextmanager
    def opened(self, schema: pa.Schema) -> Iterator[Lot]:
        """Where one task leaves its rows."""
        if self.folder is None:
            yield Lot(None, None)
            return
        place = Path(self.folder, str(self.clock.number()))
        place.mkdir(parents=True, exist_ok=True)
        self._clear(place)
        # a task that runs again, or one of a batch that runs again, has a file of its own
        path = place / f"{uuid.uuid4().hex}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            yield Lot(str(path), writer)

    def _clear(self, own: Path) -> None:
        """Batches come one after the other: nobody asks for the rows of another one."""
        for other in own.parent.iterdir():
            if other.name != own.name:
                shutil.rmtree(other, ignore_errors=True)


@dataclass
class Lot:
    """The rows of one task."""

    path: str | None
    writer: pa.RecordBatchFileWriter | None
    _batches: int = 0

    def park(self, rows: pa.RecordBatch, parts: list[np.ndarray]) -> Iterator[tuple[bytes, np.ndarray]]:
        """Leave a batch: for each part of its rows a note, and their places in what the note leads to."""
        if self.path is None or self.writer is None:
            for part in parts:
                yield _HERE + rows.take(pa.array(part)).serialize().to_pybytes(), np.arange(len(part))
            return
        self.writer.write_batch(rows)
        note = _THERE + f"{self._batches} {self.path}".encode()
        self._batches += 1
        for part in parts:
            yield note, part


_HERE, _THERE = b"h", b"t"


@dataclass
class Fetcher:
    """Brings rows back in a task."""

    schema: pa.Schema
    _files: dict[str, pa.RecordBatchFileReader] = field(default_factory=dict)

    def fetch(self, note: bytes) -> pa.RecordBatch:
        """What a note leads to."""
        if note[:1] == _HERE:
            return pa.ipc.read_record_batch(pa.py_buffer(note)[1:], self.schema)
        number, _, path = note[1:].decode().partition(" ")
        if path not in self._files:
            self._files[path] = pa.ipc.open_file(pa.memory_map(path))
        return self._files[path].get_batch(int(number))
