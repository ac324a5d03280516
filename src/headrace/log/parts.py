"""Pieces of segments: Arrow streams in files that are named after their content.

A task may run twice at the same time, and an engine that lost its lease may still write. Since the name holds a digest
of the content, neither can change a piece that was committed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from headrace.core.files.state_files import StatePath, write_atomically
from headrace.log.log import LogDamagedError, Mark, SegmentPart

_PART_BYTES = 16_000_000
_ZSTD = pa.ipc.IpcWriteOptions(compression="zstd")
_NAME = re.compile(r"(?P<series>.+)-(?P<batch>\d+)-(?P<task>\d+)-\d+-[0-9a-f]+\.arrow")


@dataclass(frozen=True)
class FileStaging:
    """Where the tasks of a batch write its changes. Pickled to the tasks."""

    folder: StatePath
    schema: pa.Schema
    mark: Mark

    def stage(self, task: int, batches: Iterable[pa.RecordBatch]) -> list[SegmentPart]:
        """Write the changes of one task. They take effect when a segment with them is committed."""
        pieces = enumerate(_pieces(self.schema, batches))
        return [self._put(f"{task:05d}-{number:03d}", rows, content) for number, (rows, content) in pieces]

    def _put(self, place: str, rows: int, content: bytes) -> SegmentPart:
        digest = digest_of(content)
        name = f"{series(self.mark.writer, self.mark.generation)}-{self.mark.batch:012d}-{place}-{digest[:12]}.arrow"
        write_atomically(self.folder / name, content)
        return SegmentPart(name, rows, len(content), digest)


def _pieces(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    """Streams of about equal size, each with its number of rows."""
    filled = (batch for batch in batches if batch.num_rows)
    batch = next(filled, None)
    while batch is not None:
        out, rows = pa.BufferOutputStream(), 0
        with pa.ipc.new_stream(out, schema, options=_ZSTD) as stream:
            while batch is not None and out.tell() < _PART_BYTES:
                stream.write_batch(batch.select(schema.names).cast(schema))
                rows += batch.num_rows
                batch = next(filled, None)
        yield rows, out.getvalue().to_pybytes()


def read_part(folder: StatePath, part: SegmentPart) -> Iterator[pa.RecordBatch]:
    """The changes of a piece, after a check of its content. Raises FileNotFoundError when it was removed."""
    content = (folder / part.name).read_bytes()
    yield from batches_of(content, part)


def batches_of(content: bytes, part: SegmentPart) -> Iterator[pa.RecordBatch]:
    """The changes in the content of a piece, after a check of its digest."""
    if digest_of(content) != part.digest:
        raise LogDamagedError(f"{part.name}: its checksum does not fit")
    with pa.ipc.open_stream(pa.py_buffer(content)) as stream:
        yield from stream


def digest_of(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def series(writer: str, generation: str) -> str:
    """The prefix of the names of all pieces of a writer's generation: readable and unique."""
    digest = hashlib.sha256(f"{writer}\0{generation}".encode()).hexdigest()[:12]
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{writer}-{generation}")[:100] + f"-{digest}"


def place_of(name: str) -> tuple[str, int] | None:
    """The series and batch of a piece; None for another file."""
    match = _NAME.fullmatch(name)
    return (match["series"], int(match["batch"])) if match else None


def task_of(name: str) -> int | None:
    """The task that wrote a piece; None for another file."""
    match = _NAME.fullmatch(name)
    return int(match["task"]) if match else None
