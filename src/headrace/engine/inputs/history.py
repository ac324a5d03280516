"""The history of a stream: its Parquet files, the event times of their row groups, and the parts in which it is read.

Row groups are sorted by event time and divided into parts. A part is one batch of a flow, and never has rows that a
window would treat as late because of an earlier part.
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
from headrace.engine.inputs.history_rows import as_times, misfits, open_parquet
from headrace.project.ranges import DateRange, folder_range
from headrace.sources.files.paths import is_local, matching_files, partition_values

_READERS = 16
_UNSUPPORTED_FEATURES = {"deletionVectors", "columnMapping"}


@dataclass(frozen=True)
class RowGroup:
    """One row group of a file. Times are microseconds since 1970; None if no row has an event time."""

    path: str
    group: int
    row: int
    """The number of its first row within the file."""
    rows: int
    first: int | None = None
    last: int | None = None
    folders: Mapping[str, str] = field(default_factory=dict)

    def to_line(self) -> str:
        """The input line of the task that reads it."""
        return json.dumps(
            {"path": self.path, "group": self.group, "row": self.row, "folders": dict(self.folders)}, sort_keys=True
        )


@dataclass(frozen=True)
class HistoryFile:
    """A file with its partition values, from its path or from the table's log."""

    path: str
    folders: Mapping[str, str] = field(default_factory=dict)


def parquet_files(paths: Sequence[str], ranges: Sequence[DateRange]) -> list[HistoryFile]:
    """The Parquet files below these absolute paths; with `ranges`, only those in folders of these dates."""
    by_path = {file.path: file for path in paths for file in _files_of(path)}
    if not by_path:
        raise ProjectError(
            "no-files",
            f"no Parquet file found in {', '.join(paths)}",
            hint="fix `backfill`, or remove it if the stream has no history",
            exit_code=Exit.NOT_FOUND,
        )
    if not ranges:
        return sorted(by_path.values(), key=lambda file: file.path)
    selected = []
    for file in sorted(by_path.values(), key=lambda file: file.path):
        spans = folder_range(file.folders)
        if spans is None:
            raise ProjectError(
                "backfill-dates",
                f"{file.path} is in no folder like dt=2026-01-31 or dt=2026-01-31/hr=07, so `dates` cannot select it",
                hint="remove `dates`, or use `until` to exclude newer rows",
            )
        if any(dates.begin < spans.end and spans.begin < dates.end for dates in ranges):
            selected.append(file)
    return selected


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
    """The current version of a Delta table, and its files."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        table = DeltaTable(path)
    except TableNotFoundError as error:
        raise ProjectError(
            "lake-missing",
            f"lake table '{path}' with the history does not exist",
            hint="fix `backfill`, or remove it if the stream has no history",
            exit_code=Exit.NOT_FOUND,
        ) from error
    features = _UNSUPPORTED_FEATURES & set(table.protocol().reader_features or ())
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
            f"{base}/{unquote(action['path'])}",
            {
                name.removeprefix("partition."): str(value)
                for name, value in action.items()
                if name.startswith("partition.") and value is not None
            },
        )
        for action in actions
    ]
    return table.version(), sorted(files, key=lambda file: file.path)


def row_groups(files: Sequence[HistoryFile], schema: pa.Schema, time: str | None, unit: str) -> list[RowGroup]:
    """The row groups of all files, with their event times. Refuses files whose columns do not fit the schema."""
    with ThreadPoolExecutor(_READERS) as pool:
        by_file = pool.map(lambda file: _row_groups_of(file, schema, time, unit), files)
        return [group for groups in by_file for group in groups]


def _row_groups_of(file: HistoryFile, schema: pa.Schema, time: str | None, unit: str) -> list[RowGroup]:
    try:
        with open_parquet(file.path) as parquet:
            problem = misfits(parquet.schema_arrow, schema, time, file.folders)
            if problem is not None:
                raise ProjectError(
                    "backfill-columns",
                    f"the history in {file.path} does not fit the stream: {problem}",
                    hint="its columns must have the names and types of the stream; missing columns are null",
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
    """The first and the last event time of a row group: from its statistics, or else from the column."""
    metadata = parquet.metadata.row_group(group)
    index = next((i for i in range(metadata.num_columns) if metadata.column(i).path_in_schema == time), None)
    if index is None:
        return None, None
    kind = parquet.schema_arrow.field(time).type
    statistics = metadata.column(index).statistics
    if statistics is not None and statistics.has_min_max and not pa.types.is_string(kind):
        values = pa.array([statistics.min, statistics.max], kind)
    else:
        values = parquet.read_row_group(group, columns=[time]).column(0).combine_chunks()
    bounds = pc.min_max(as_times(values, unit).cast(pa.int64())).as_py()
    return bounds["min"], bounds["max"]


def split_into_parts(groups: Iterable[RowGroup], max_rows: int, delay: int | None) -> list[list[RowGroup]]:
    """The row groups in the order of event time, in parts of about `max_rows` rows.

    With a `delay` (that of the watermark, in microseconds) a part ends only where all following rows are at most that
    much older than the rows before, so that no row is late; such parts can be larger.
    """
    ordered = sorted(groups, key=_order)
    oldest_after = list(accumulate(reversed([_or(group.first, 2**63) for group in ordered]), min))[::-1]
    parts: list[list[RowGroup]] = []
    part: list[RowGroup] = []
    rows, newest = 0, -(2**63)
    for index, group in enumerate(ordered):
        full = rows + group.rows > max_rows
        if part and full and (delay is None or oldest_after[index] >= newest - delay):
            parts.append(part)
            part, rows = [], 0
        part.append(group)
        rows += group.rows
        newest = max(newest, _or(group.last, newest))
    return [*parts, part] if part else parts


def _order(group: RowGroup) -> tuple[Any, ...]:
    span = folder_range(group.folders)
    by_folder = None if span is None else int(span.begin.timestamp() * 1_000_000)
    begin = group.first if group.first is not None else by_folder
    return (_or(begin, -(2**63)), group.path, group.group)


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def newest_offsets(files: Sequence[HistoryFile], topics: Sequence[str]) -> dict[str, dict[int, int]]:
    """The highest offset of each partition in the history. With a single topic, `_topic` is not needed."""
    columns = ["_partition", "_offset", *(["_topic"] if len(topics) != 1 else [])]
    with ThreadPoolExecutor(_READERS) as pool:
        tables = list(pool.map(lambda file: _highest(file, columns), files))
    newest: dict[str, dict[int, int]] = {}
    for table in tables:
        for row in table.to_pylist():
            topic = row.get("_topic", topics[0] if topics else "")
            partitions = newest.setdefault(topic, {})
            partitions[row["_partition"]] = max(partitions.get(row["_partition"], -1), row["_offset_max"])
    return newest


def _highest(file: HistoryFile, columns: Sequence[str]) -> pa.Table:
    with open_parquet(file.path) as parquet:
        missing = [name for name in columns if name not in parquet.schema_arrow.names]
        if missing:
            raise ProjectError(
                "backfill-seam",
                f"the history in {file.path} has no column {', '.join(missing)}, so the start in Kafka is unknown",
                hint="store _topic, _partition and _offset with the rows, or set `until` to the end of the history",
            )
        table = parquet.read(columns=list(columns))
    if table.column("_offset").null_count or table.column("_partition").null_count:
        raise ProjectError(
            "backfill-seam",
            f"the history in {file.path} has rows without an offset, so the start in Kafka is unknown",
            hint="remove these rows, or set `until` to the end of the history",
        )
    keys = [name for name in columns if name != "_offset"]
    return table.group_by(keys).aggregate([("_offset", "max")])
