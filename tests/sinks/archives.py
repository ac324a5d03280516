"""Archives for tests, written without Spark by what works in its tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from headrace.core.files.state_files import StatePath
from headrace.sinks._refused import Report
from headrace.sinks.archive.batch import ArchiveBatch, Staged
from headrace.sinks.archive.task import FILE, ArchiveWrite, Compression

Lines = list[tuple[str, str, int]]
"""Folder, value and offset of each."""


def stage_lines(rows: Lines, staging: StatePath, compression: Compression, report: Report) -> list[Staged]:
    """What two tasks make of these lines; the number of a task is the partition of its lines."""
    found = []
    for task in range(2):
        share = rows[task::2]
        table = {
            "folder": pa.array([folder for folder, _, _ in share], pa.string()),
            "value": pa.array([value.encode() for _, value, _ in share], pa.binary()),
            "partition": pa.array([task] * len(share), pa.int32()),
            "offset": pa.array([offset for _, _, offset in share], pa.int64()),
        }
        work = ArchiveWrite(staging / f"task{task}", compression, None, report)
        for told in work(iter([pa.RecordBatch.from_pydict(table)])):
            for row in told.to_pylist():
                assert row["outcome"] == FILE
                name, runs = f"task{task}/{row['staged']}", json.loads(row["positions"])
                found.append(Staged(row["folder"], name, row["rows"], row["bytes"], runs))
    return found


def write_archive(root: Path, rows: Lines, number: int = 0, compression: Compression = "gzip") -> None:
    """One batch of the flow `backup` in an archive."""
    ending = {"gzip": ".json.gz", "zstd": ".json.zst", "none": ".json"}[compression]
    one = ArchiveBatch(root, "backup-archive", "g1", number, ending)
    one.write(lambda staging: stage_lines(rows, staging, compression, Report("test", "g1", number, None)))
    one.finish(lambda folder: False)
