"""Reads the files of folders. A position is, by table, the existing files that were read, with time and size:

`{"orders": {"seen": {"a.parquet": [1700000000000000000, 1234]}}}`; with `first` while the first ones are read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.positions import Position
from headrace.core.schema import from_ddl, to_ddl
from headrace.core.tables import CapturedBatch, RowChange, TableReader, TableShape

if TYPE_CHECKING:
    from headrace.tables.files import FilesTable

_PAGE = 50_000
_MOST_FILES = 10_000
_DELETED = ("D", "d", "delete")
_THERE = ("I", "U", "i", "u", "insert", "update", None)
# what pyarrow raises for a bad file or a bad column
_UNFIT = (pa.ArrowException, OSError, KeyError, UnicodeDecodeError)


@dataclass
class _FollowedFiles:
    name: str
    source: FilesTable
    shape: TableShape
    seen: dict[str, tuple[int, int]]
    first: bool
    due: float = 0.0

    def position(self) -> dict[str, Any]:
        """The position after what was read."""
        return {
            "seen": {name: list(about) for name, about in self.seen.items()},
            **({"first": True} if self.first else {}),
        }


class FilesReader(TableReader):
    """Lists the folders regularly."""

    def __init__(
        self,
        tables: Mapping[str, FilesTable],
        shapes: Mapping[str, TableShape],
        after: Position | None,
        context: Context,
    ) -> None:
        self._context = context
        self._tables: list[_FollowedFiles] = []
        for name, source in tables.items():
            known = (after or {}).get(name, {"first": True, "seen": {}})
            first = known.get("first", False)
            seen = {} if first else {file: (at, size) for file, (at, size) in known["seen"].items()}
            self._tables.append(_FollowedFiles(name, source, shapes[name], seen, first))
        self._found: Iterator[CapturedBatch] = iter(())

    def read(self, seconds: float) -> CapturedBatch | None:
        """The next file, or a part of it."""
        until = time.monotonic() + seconds
        while True:
            batch = next(self._found, None)
            if batch is not None:
                return batch
            begin = min(table.due for table in self._tables)
            # nothing to wait on but the time
            time.sleep(max(0.0, min(begin, until) - time.monotonic()))
            if time.monotonic() < begin:
                return None
            self._found = self._look()

    def confirm(self, position: Position) -> None:
        """Nothing: files are not removed."""

    def close(self) -> None:
        """Nothing is held open."""

    def _look(self) -> Iterator[CapturedBatch]:
        for table in self._tables:
            if table.due <= time.monotonic():
                yield from self._folder(table)
                table.due = time.monotonic() + table.source.every.total_seconds()

    def _folder(self, table: _FollowedFiles) -> Iterator[CapturedBatch]:
        files = table.source.listed(self._context)
        if len(files) > _MOST_FILES:
            raise ProjectError(
                "too-many-files",
                f"there are {len(files)} files in '{table.source.path}'; at most {_MOST_FILES} are supported",
                hint="remove files that were read: their rows stay; or write a lake table",
            )
        if table.first:
            yield self._taken(begins=frozenset({table.name}))
        table.seen = {name: about for name, about in table.seen.items() if name in files}
        for name, about in files.items():
            if table.seen.get(name) != about:
                yield from self._file(table, table.source.folder(self._context) / name, about)
        if table.first:
            table.first = False
            yield self._taken(ends=frozenset({table.name}))

    def _file(self, table: _FollowedFiles, file: Path, about: tuple[int, int]) -> Iterator[CapturedBatch]:
        """The rows of a file; the position has the file with the last of them."""
        if table.source.columns is None:
            new = [column for column in table.source.columns_in(file) if column.name not in table.shape.columns.names]
            if new:
                table.shape = TableShape(pa.schema([*table.shape.columns, *new]), table.shape.key)
                yield self._taken(shapes={table.name: table.shape})
        changes: dict[str, Any] = {}
        for page in _pages(table, file):
            if changes:
                yield self._taken(**changes)
            changes = self._said(table, file, page)
        table.seen[file.name] = about
        yield self._taken(**changes)

    def _said(self, table: _FollowedFiles, file: Path, page: pa.Table) -> dict[str, Any]:
        columns = table.shape.columns
        with understood(file):
            rows = pa.Table.from_arrays([_column(page, column) for column in columns], schema=columns)
            if table.source.op is None:
                return {"rows": {table.name: rows}}
            ops = page.column(table.source.op).to_pylist()
        places = [columns.names.index(name) for name in table.shape.key]
        changes = []
        for op, row in zip(ops, zip(*(column.to_pylist() for column in rows.columns), strict=True), strict=True):
            if op in _DELETED:
                changes.append(RowChange(table.name, None, tuple(row[place] for place in places)))
            elif op in _THERE:
                changes.append(RowChange(table.name, row))
            else:
                raise _not_understood(file, f"'{op}' in column '{table.source.op}' is not I, U or D")
        return {"changes": changes}

    def _taken(self, **content: Any) -> CapturedBatch:
        return CapturedBatch(position={table.name: table.position() for table in self._tables}, **content)


def _column(page: pa.Table, target: pa.Field) -> Any:
    if target.name not in page.column_names:
        return pa.nulls(page.num_rows, target.type)
    return page.column(target.name).cast(target.type)


def _pages(table: _FollowedFiles, file: Path) -> Iterator[pa.Table]:
    with understood(file):
        for batch in _batches(table, file):
            for begin in range(0, batch.num_rows, _PAGE):
                yield pa.Table.from_batches([batch.slice(begin, _PAGE)])


def _batches(table: _FollowedFiles, file: Path) -> Iterator[pa.RecordBatch]:
    columns = table.shape.columns
    if table.source.op is not None:
        columns = columns.append(pa.field(table.source.op, pa.string()))
    match table.source.format:
        case "parquet":
            yield from pa.parquet.ParquetFile(file).iter_batches(_PAGE)
        case "csv":
            types = {column.name: column.type for column in columns}
            options = pa.csv.ConvertOptions(
                column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=False
            )
            yield from pa.csv.open_csv(file, convert_options=options)
        case "json":
            options = pa.json.ParseOptions(explicit_schema=columns, unexpected_field_behavior="ignore")
            yield from pa.json.read_json(file, parse_options=options).to_batches()


def parquet_columns(file: Path) -> pa.Schema:
    """The columns of a Parquet file, with the types that Spark has for them."""
    with understood(file):
        return from_ddl(to_ddl(pa.parquet.read_schema(file)))


@contextmanager
def understood(file: Path) -> Iterator[None]:
    """Raise errors of a file as errors with a code."""
    try:
        yield
    except _UNFIT as error:
        raise _not_understood(file, str(error).splitlines()[0][:300]) from error


def _not_understood(file: Path, why: str) -> ProjectError:
    return ProjectError(
        "files-not-understood",
        f"the file {file} cannot be read: {why}",
        hint="fix or remove it, or fix `format` and `columns`",
    )
