"""`type: files`: files of a folder, each with the newest state of some rows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import pyarrow as pa
from pydantic import Field, model_validator

from headrace.core.context import Context
from headrace.core.durations import Duration
from headrace.core.errors import Exit, ProjectError, did_you_mean
from headrace.core.lazy import lazy_modules
from headrace.core.positions import Position
from headrace.core.schema import from_ddl
from headrace.core.tables import TableReader, TableShape, TableSource
from headrace.tables._options import Columns

if TYPE_CHECKING:
    from headrace.tables.files import reader
else:
    reader = lazy_modules("headrace.tables.files.reader")

_SUFFIXES = {"parquet": ".parquet", "csv": ".csv", "json": ".json"}


class FilesTable(TableSource):
    """Rows in files: each file of a folder holds the newest state of some rows, which have a key.

    Files are read once, in the order of their times and names; a file that is written again is read again. Files must
    appear complete: write them as hidden files (`.name`, `_name`) or elsewhere, then rename them. Removing a file
    removes no rows: a column `op` with `D` does.

    Delivery: exactly once. Order: files by time and name, rows by their place in the file. A file of more than 50,000
    rows is read in several steps. Scale: 10,000 files at a time in the folder; JSON files are read into memory.
    """

    type: Literal["files"] = "files"
    path: str = Field(description="The folder, relative to the project; its own files only.", examples=["data/orders"])
    format: Literal["parquet", "csv", "json"] = Field(
        "parquet",
        description="The format of the files; files with another suffix are ignored. CSV has a header, JSON "
        "is one object per line.",
    )
    columns: Columns | None = Field(
        None,
        description="The table's columns, as DDL; columns that a file lacks are null. Left out: those of the newest "
        "Parquet file.",
        examples=["id bigint, name string"],
    )
    op: str | None = Field(
        None,
        description="Column with the operation of a row: I, U or D. It is not part of the table. Left out: all rows "
        "are inserts or updates.",
        examples=["op"],
    )
    every: Duration = Field(timedelta(seconds=5), description="How often to look for new files.")

    @model_validator(mode="after")
    def _columns_of_texts(self) -> Self:
        if self.format != "parquet" and self.columns is None:
            raise ValueError(f"`format: {self.format}` needs `columns`")
        if "://" in self.path:
            raise ValueError("`path` must be a local folder; for tables on object stores use `lake`")
        return self

    @property
    def label(self) -> str:
        return f"files {self.path}"

    @property
    def group(self) -> str:
        """The folder: other folders change independently."""
        return f"files {self.path}"

    def folder(self, context: Context) -> Path:
        folder = Path(context.path(self.path))
        if not folder.is_dir():
            names = [entry.name for entry in folder.parent.iterdir()] if folder.parent.is_dir() else []
            raise ProjectError(
                "no-files",
                f"there is no folder '{self.path}' (looked for {folder})",
                hint=did_you_mean(folder.name, names, f"in {folder.parent}"),
                exit_code=Exit.NOT_FOUND,
            )
        return folder

    def listed(self, context: Context) -> dict[str, tuple[int, int]]:
        """Time and size of the files by name, in the order in which they are read."""
        files = []
        for entry in self.folder(context).iterdir():
            if entry.name[0] not in "._" and entry.suffix == _SUFFIXES[self.format]:
                status = entry.stat()
                files.append((status.st_mtime_ns, entry.name, status.st_size))
        return {name: (moment, size) for moment, name, size in sorted(files)}

    def check(self, context: Context) -> None:
        """The folder exists and its columns are known."""
        self.shape(context)

    def shape(self, context: Context) -> TableShape:
        """The declared columns, or those of the newest file; files have no key."""
        if self.columns is not None:
            self.folder(context)
            return TableShape(from_ddl(self.columns))
        newest = next(reversed(self.listed(context)), None)
        if newest is None:
            raise ProjectError(
                "table-columns-unknown",
                f"there is no file in '{self.path}' yet, so the table's columns are not known",
                hint="declare them: columns: id bigint, name string",
            )
        return TableShape(self.columns_in(self.folder(context) / newest))

    def columns_in(self, file: Path) -> pa.Schema:
        """The columns of a Parquet file, with the types that Spark has for them, without that of `op`."""
        columns = reader.parquet_columns(file)
        return pa.schema([column for column in columns if column.name != self.op])

    @classmethod
    def reader(
        cls,
        tables: Mapping[str, TableSource],
        shapes: Mapping[str, TableShape],
        after: Position | None,
        context: Context,
    ) -> TableReader:
        """Lists the folders repeatedly."""
        own = {name: table for name, table in tables.items() if isinstance(table, cls)}
        return reader.FilesReader(own, shapes, after, context)
