"""The lines of one task on their way into compressed files, in a Python worker: one file per folder.

No line is processed by itself: values are joined by Arrow and compressed in chunks of some megabytes. A gzip or zstd
file may consist of many such chunks, one after the other, which is also what makes merging cheap.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.files.objects import ObjectPath
from headrace.core.files.state_files import StatePath, sync
from headrace.core.lazy import lazy_modules
from headrace.core.schema import to_ddl
from headrace.sinks._refused import Report, task_number

if TYPE_CHECKING:
    import pyspark
else:
    pyspark = lazy_modules("pyspark")

Compression = Literal["gzip", "zstd", "none"]
FILE = "file"
_SCHEMA = pa.schema(
    [
        ("outcome", pa.string()),
        ("rows", pa.int64()),
        ("folder", pa.string()),
        ("staged", pa.string()),
        ("bytes", pa.int64()),
        ("positions", pa.string()),
    ]
)
SUMMARY = to_ddl(_SCHEMA)
_CHUNK = 4 << 20
_WAITING = 64 << 20
# what topics may be called, which are folders here; hidden ones would not be found again
_TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/dt=.+")
_LINE_ENDS = (10, 13)


@dataclass
class _File:
    """One file while it is written."""

    path: Path
    waiting: list[pa.Buffer] = field(default_factory=list)
    size: int = 0
    """Of what waits to be compressed."""
    records: int = 0
    runs: list[list[int]] = field(default_factory=list)

    def add(self, lines: pa.Buffer, records: int, runs: list[list[int]]) -> None:
        self.waiting.append(lines)
        self.size += lines.size
        self.records += records
        if runs and self.runs and _goes_on(self.runs[-1], runs[0]):
            self.runs[-1][2] += runs.pop(0)[2]
        self.runs += runs

    def flush(self, codec: pa.Codec | None) -> None:
        """Compress what waits and put it at the end. The file is not kept open: there may be thousands."""
        content = b"".join(self.waiting)
        with self.path.open("ab") as file:
            file.write(codec.compress(content) if codec is not None else content)
        self.waiting, self.size = [], 0


@dataclass(frozen=True)
class ArchiveWrite:
    """Writes the lines of one task; called by Spark with `folder`, `value` and perhaps `partition` and `offset`."""

    staging: StatePath
    compression: Compression
    level: int | None
    report: Report

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self._drafts() as drafts:
            files = _Files(drafts, self._codec())
            try:
                row = 0
                for batch in batches:
                    for folder, rows in _by_folder(batch, row, self.report):
                        files.add(folder, rows)
                    row += batch.num_rows
                files.flush()
            finally:
                counts = [(row["outcome"], row["rows"]) for batch in self.report.batches() for row in batch.to_pylist()]
            yield from self._summary(counts, files)

    @contextmanager
    def _drafts(self) -> Iterator[Path]:
        """Where files are written: in the staging folder itself, unless only whole objects can be put there."""
        if isinstance(self.staging, ObjectPath):
            with tempfile.TemporaryDirectory(prefix="headrace-archive-") as scratch:
                yield Path(scratch)
            return
        folder = self.staging / _attempt()
        folder.mkdir(parents=True, exist_ok=True)
        yield folder

    def _codec(self) -> pa.Codec | None:
        if self.compression == "none":
            return None
        return pa.Codec(self.compression, compression_level=self.level or {"gzip": 6, "zstd": 3}[self.compression])

    def _summary(self, counts: list[tuple[str, int]], files: _Files) -> Iterator[pa.RecordBatch]:
        summary: list[dict[str, Any]] = [{"outcome": outcome, "rows": rows} for outcome, rows in counts]
        for folder, file in files.by_folder.items():
            size = file.path.stat().st_size
            summary.append(
                {
                    "outcome": FILE,
                    "rows": file.records,
                    "folder": folder,
                    "staged": self._staged(file.path),
                    "bytes": size,
                    "positions": json.dumps(file.runs),
                }
            )
        if summary:
            yield pa.RecordBatch.from_pylist(summary, schema=_SCHEMA)

    def _staged(self, draft: Path) -> str:
        """Make a draft durable; its name below the staging folder."""
        name = f"{_attempt()}/{draft.name}"
        if isinstance(self.staging, ObjectPath):
            (self.staging / name).put(draft)
        else:
            sync(draft)
        return name


class _Files:
    def __init__(self, drafts: Path, codec: pa.Codec | None) -> None:
        self._drafts, self._codec = drafts, codec
        self.by_folder: dict[str, _File] = {}
        self._waiting = 0

    def add(self, folder: str, rows: pa.RecordBatch) -> None:
        file = self.by_folder.get(folder)
        if file is None:
            file = self.by_folder[folder] = _File(self._drafts / f"{len(self.by_folder):05d}")
        lines = joined(rows.column("value"))
        file.add(lines, rows.num_rows, _runs(rows))
        self._waiting += lines.size
        if file.size >= _CHUNK:
            self._waiting -= file.size
            file.flush(self._codec)
        if self._waiting >= _WAITING:
            self.flush()

    def flush(self) -> None:
        """Empty all that waits; with many folders each has only little."""
        for file in self.by_folder.values():
            if file.waiting:
                file.flush(self._codec)
        self._waiting = 0


def _attempt() -> str:
    """A folder for each attempt at a task: Spark uses the result of only one."""
    task = pyspark.TaskContext.get()
    return f"{task_number():05d}-{0 if task is None else task.taskAttemptId()}"


def _by_folder(batch: pa.RecordBatch, first: int, report: Report) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each folder in their order, without those that are no lines or have no place."""
    rows = _only_lines(batch, first, report)
    folders = rows.column("folder").dictionary_encode()
    codes = folders.indices.to_numpy(zero_copy_only=False)
    if len(folders.dictionary) == 1:
        yield folders.dictionary[0].as_py(), rows
        return
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(folders.dictionary) + 1))
    for number, folder in enumerate(folders.dictionary.to_pylist()):
        yield folder, rows.take(pa.array(order[bounds[number] : bounds[number + 1]]))


def _only_lines(batch: pa.RecordBatch, first: int, report: Report) -> pa.RecordBatch:
    problems = _bad_topics(batch.column("folder")) | _no_lines(batch.column("value"))
    for row, problem in sorted(problems.items()):
        value = batch.column("value")[row].as_py()
        report.refused(first + row, problem[0], problem[1], value)
    if not problems:
        return batch
    keep = np.ones(batch.num_rows, bool)
    keep[list(problems)] = False
    return batch.filter(pa.array(keep))


def _bad_topics(folders: pa.Array) -> dict[int, tuple[str, str]]:
    bad = [one for one in pc.unique(folders).to_pylist() if one is None or not _TOPIC.fullmatch(one)]
    if not bad:
        return {}
    rows = pc.indices_nonzero(pc.is_in(folders, pa.array(bad, folders.type))).to_pylist()
    return {row: ("bad-topic", f"no folder can be called so: {folders[row].as_py()}"[:200]) for row in rows}


def _no_lines(values: pa.Array) -> dict[int, tuple[str, str]]:
    """Values that cannot be one line. The bytes of all are looked at together, each value only if there are any."""
    found: dict[int, tuple[str, str]] = {}
    if values.null_count:
        nothing = ("no-value", "the record has no value")
        found = dict.fromkeys(pc.indices_nonzero(pc.is_null(values)).to_pylist(), nothing)
    content = np.frombuffer(_content(values), np.uint8)
    if any((content == end).any() for end in _LINE_ENDS):
        broken = pc.indices_nonzero(pc.or_(pc.match_substring(values, "\n"), pc.match_substring(values, "\r")))
        found |= dict.fromkeys(broken.to_pylist(), ("not-a-line", "the value has a line break"))
    return found


def joined(values: pa.Array) -> pa.Buffer:
    """The values one after the other, each with a line end."""
    return _content(pc.binary_join_element_wise(values, b"", b"\n"))


def _content(values: pa.Array) -> pa.Buffer:
    """The bytes of all values of an array."""
    _valid, offsets, content = values.buffers()
    if content is None:
        return pa.py_buffer(b"")
    ends = np.frombuffer(offsets, np.int32)
    start, end = int(ends[values.offset]), int(ends[values.offset + len(values)])
    return content.slice(start, end - start)


def _runs(rows: pa.RecordBatch) -> list[list[int]]:
    """Partition, first offset and length of each run of records that follow each other."""
    if "offset" not in rows.schema.names or not rows.num_rows:
        return []
    partitions, offsets = (rows.column(name).to_numpy(zero_copy_only=False) for name in ("partition", "offset"))
    unknown = (offsets[1:] < 0) & (offsets[:-1] < 0)
    breaks = np.flatnonzero(((np.diff(offsets) != 1) & ~unknown) | (np.diff(partitions) != 0)) + 1
    starts = np.concatenate(([0], breaks))
    lengths = np.diff(np.concatenate((starts, [rows.num_rows])))
    runs: list[list[int]] = np.stack((partitions[starts], offsets[starts], lengths), axis=1).tolist()
    return runs


def _goes_on(run: list[int], following: list[int]) -> bool:
    return run[0] == following[0] and (run[1] + run[2] == following[1] or run[1] == following[1] == -1)
