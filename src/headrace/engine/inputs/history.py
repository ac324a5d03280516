"""The history of a stream: which Parquet files hold it, when their rows are from, and in which parts it is read.

A piece is one row group of one file. Pieces are put in the order of time and cut into parts, each of which is one batch
of a flow: a part never holds rows that a window would take for late because of an earlier part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileSystem, FileType

from headrace.core.errors import Exit, ProjectError
from headrace.engine.inputs.history_rows import as_times, misfits, opened
from headrace.project.ranges import DateRange, folder_range
from headrace.sources.files.paths import is_local, matching_files, partition_values

_READERS = 16
_UNREADABLE_BY_US = {"deletionVectors", "columnMapping"}


@dataclass(frozen=True)
class RowGroup:
    """One row group of a file. Times are microseconds since 1970, None when it has no row with a time."""

    path: str
    group: int
    row: int
    """The number of its first row in the file."""
    rows: int
    first: int | None = None
    last: int | None = None
    folders: Mapping[str, str] = field(default_factory=dict)

    def to_line(self) -> str:
        """As the task that reads it gets it."""
        return json.dumps(
            {"path": self.path, "group": self.group, "row": self.row, "folders": dict(self.folders)}, sort_keys=True
        )


@dataclass(frozen=True)
class HistoryFile:
    """A file and what its folders, or the table's log, say about its rows."""

    path: str
    folders: Mapping[str, str] = field(default_factory=dict)


def parquet_files(paths: Sequence[str], ranges: Sequence[DateRange]) -> list[HistoryFile]:
    """The Parquet files below these absolute paths, in folders of these ranges when there are any."""
    found = {file.path: file for path in paths for file in _files_of(path)}
    if not found:
        raise ProjectError(
            "no-files",
            f"there is no Parquet file in {', '.join(paths)}",
            hint="mend `backfill`, or remove it when there is no history",
            exit_code=Exit.NOT_FOUND,
        )
    if not ranges:
        return sorted(found.values(), key=lambda file: file.path)
    kept = []
    for file in sorted(found.values(), key=lambda file: file.path):
        spans = folder_range(file.folders)
        if spans is None:
            raise ProjectError(
                "backfill-dates",
                f"{file.path} is in no folder like dt=2026-01-31 or dt=2026-01-31/hr=07, so `dates` cannot choose",
                hint="leave `dates` out, or use `until` to leave out what is newer",
            )
        if any(one.begin < spans.end and spans.begin < one.end for one in ranges):
            kept.append(file)
    return kept


def _files_of(path: str) -> Iterator[HistoryFile]:
    if is_local(path):
        for file in matching_files(path, recursive=True):
            if file.suffix == ".parquet":
                yield HistoryFile(str(file), _folders(str(file)))
        return
    system, name = FileSystem.from_uri(path)
    scheme = path.partition("://")[0]
    for info in system.get_file_info(FileSelector(name, recursive=True)):
        hidden = any(part.startswith(("_", ".")) for part in info.path[len(name) :].split("/"))
        if info.type == FileType.File and info.path.endswith(".parquet") and not hidden:
            yield HistoryFile(f"{scheme}://{info.path}", _folders(info.path))


def _folders(path: str) -> dict[str, str]:
    return {name: unquote(value) for name, value in partition_values(path, "").items()}


def lake_files(path: str) -> tuple[int, list[HistoryFile]]:
    """The version of a Delta table as it stands now, and its files."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        table = DeltaTable(path)
    except TableNotFoundError as error:
        raise ProjectError(
            "lake-missing",
            f"there is no lake table at '{path}' to read the history from",
            hint="mend `backfill`, or remove it when there is no history",
            exit_code=Exit.NOT_FOUND,
        ) from error
    features = _UNREADABLE_BY_US & set(table.protocol().reader_features or ())
    if features:
        raise ProjectError(
            "backfill-table",
            f"the history in lake table '{path}' cannot be read file by file: it uses {', '.join(sorted(features))}",
            hint="copy it into a table without them",
        )
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    base = path.rstrip("/")
    files = [
        HistoryFile(
            f"{base}/{unquote(one['path'])}",
            {
                name.removeprefix("partition."): str(value)
                for name, value in one.items()
                if name.startswith("partition.") and value is not None
            },
        )
        for one in actions
    ]
    return table.version(), sorted(files, key=lambda file: file.path)


def pieces_of(files: Sequence[HistoryFile], wanted: pa.Schema, time: str | None, unit: str) -> list[RowGroup]:
    """The row groups of all files, with the times of their rows. Refuses files whose columns do not fit."""
    with ThreadPoolExecutor(_READERS) as pool:
        found = pool.map(lambda file: _pieces(file, wanted, time, unit), files)
        return [piece for pieces in found for piece in pieces]


def _pieces(file: HistoryFile, wanted: pa.Schema, time: str | None, unit: str) -> list[RowGroup]:
    try:
        with opened(file.path) as parquet:
            problem = misfits(parquet.schema_arrow, wanted, time, file.folders)
            if problem is not None:
                raise ProjectError(
                    "backfill-columns",
                    f"the history in {file.path} does not fit the stream: {problem}",
                    hint="its columns must have the names and types of the stream's; missing ones are null",
                )
            return list(_groups(file, parquet, time, unit))
    except (pa.ArrowException, OSError) as error:
        raise ProjectError(
            "files-not-understood",
            f"the history in {file.path} cannot be read: {str(error).splitlines()[0][:200]}",
            hint="it must be a Parquet file",
        ) from error


def _groups(file: HistoryFile, parquet: pq.ParquetFile, time: str | None, unit: str) -> Iterator[RowGroup]:
    row = 0
    for group in range(parquet.metadata.num_row_groups):
        rows = parquet.metadata.row_group(group).num_rows
        first, last = _times(parquet, group, time, unit) if time is not None else (None, None)
        yield RowGroup(file.path, group, row, rows, first, last, file.folders)
        row += rows


def _times(parquet: pq.ParquetFile, group: int, time: str, unit: str) -> tuple[int | None, int | None]:
    """The first and the last time of a row group: from its statistics or, where it has none, from the column."""
    about = parquet.metadata.row_group(group)
    index = next((i for i in range(about.num_columns) if about.column(i).path_in_schema == time), None)
    if index is None:
        return None, None
    kind = parquet.schema_arrow.field(time).type
    statistics = about.column(index).statistics
    if statistics is not None and statistics.has_min_max and not pa.types.is_string(kind):
        values = pa.array([statistics.min, statistics.max], kind)
    else:
        values = parquet.read_row_group(group, columns=[time]).column(0).combine_chunks()
    bounds = pc.min_max(as_times(values, unit).cast(pa.int64())).as_py()
    return bounds["min"], bounds["max"]


def in_parts(pieces: Iterable[RowGroup], most: int, delay: int | None) -> list[list[RowGroup]]:
    """The pieces in the order of time, in parts of about `most` rows.

    With a `delay` (microseconds that late rows are waited for) a part ends only where all that follows is at most that
    much older than what came before, so that nothing is late; such parts may be larger.
    """
    ordered = sorted(pieces, key=_order)
    follows = list(accumulate(reversed([_or(p.first, 2**63) for p in ordered]), min))[::-1]
    parts: list[list[RowGroup]] = []
    part: list[RowGroup] = []
    rows, newest = 0, -(2**63)
    for index, piece in enumerate(ordered):
        full = rows + piece.rows > most
        if part and full and (delay is None or follows[index] >= newest - delay):
            parts.append(part)
            part, rows = [], 0
        part.append(piece)
        rows += piece.rows
        newest = max(newest, _or(piece.last, newest))
    return [*parts, part] if part else parts


def _order(piece: RowGroup) -> tuple[Any, ...]:
    span = folder_range(piece.folders)
    by_folder = None if span is None else int(span.begin.timestamp() * 1_000_000)
    begin = piece.first if piece.first is not None else by_folder
    return (_or(begin, -(2**63)), piece.path, piece.group)


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def newest_offsets(files: Sequence[HistoryFile], topics: Sequence[str]) -> dict[str, dict[int, int]]:
    """The highest offset of each partition in the history; `_topic` is not needed when there is one topic."""
    columns = ["_partition", "_offset", *(["_topic"] if len(topics) != 1 else [])]
    with ThreadPoolExecutor(_READERS) as pool:
        tables = list(pool.map(lambda file: _highest(file, columns), files))
    found: dict[str, dict[int, int]] = {}
    for table in tables:
        for row in table.to_pylist():
            topic = row.get("_topic", topics[0] if topics else "")
            partitions = found.setdefault(topic, {})
            partitions[row["_partition"]] = max(partitions.get(row["_partition"], -1), row["_offset_max"])
    return found


def _highest(file: HistoryFile, columns: Sequence[str]) -> pa.Table:
    with opened(file.path) as parquet:
        missing = [name for name in columns if name not in parquet.schema_arrow.names]
        if missing:
            raise ProjectError(
                "backfill-seam",
                f"the history in {file.path} has no {' and no '.join(missing)}, so it is not known where Kafka goes on",
                hint="keep _topic, _partition and _offset with the rows, or say `until` when the history ends",
            )
        table = parquet.read(columns=list(columns))
    if table.column("_offset").null_count or table.column("_partition").null_count:
        raise ProjectError(
            "backfill-seam",
            f"the history in {file.path} has rows without an offset, so it is not known where Kafka goes on",
            hint="leave them out, or say `until` when the history ends",
        )
    keys = [name for name in columns if name != "_offset"]
    return table.group_by(keys).aggregate([("_offset", "max")])
