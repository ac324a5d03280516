"""`type: files`: files of a folder that bring the newest state of some rows each."""

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
    """Rows that come in files: each file of a folder holds the newest state of some rows, which have a key.

    Files are read in the order of their times and names, once; one that is written anew is read again. They must
    appear whole, by a rename or as hidden files (`.name`, `_name`) until then. Removing a file removes no rows: a
    column `op` with `D` does.

    Delivery: exactly once. Order: files by time and name, rows as they stand in a file. A file of more than 50,000
    rows comes in several steps. Scale: 10,000 files at a time in the folder; JSON files are read into memory.
    """

    type: Literal["files"] = "files"
    path: str = Field(description="The folder, relative to the project; its own files only.", examples=["data/orders"])
    format: Literal["parquet", "csv", "json"] = Field(
        "parquet",
        description="What the files are; those whose names end in another way are left alone. CSV has a header, JSON "
        "is one object per line.",
    )
    columns: Columns | None = Field(
        None,
        description="The table's columns, as DDL; what a file does not have is null. Left out: those of the newest "
        "Parquet file.",
        examples=["id bigint, name string"],
    )
    op: str | None = Field(
        None,
        description="Column that says what a row is: I, U or D. It is not part of the table. Left out: all rows are "
        "inserts or updates.",
        examples=["op"],
    )
    every: Duration = Field(timedelta(seconds=5), description="How often to look for new files.")

    @model_validator(mode="after")
    def _columns_of_texts(self) -> Self:
        if self.format != "parquet" and self.columns is None:
            raise ValueError(f"`format: {self.format}` needs `columns`")
        if "://" in self.path:
            raise ValueError("only folders of this machine can be followed; for tables on object stores see `lake`")
        return self

    @property
    def label(self) -> str:
        return f"files {self.path}"

    @property
    def group(self) -> str:
        """The folder: others change apart from it."""
        return f"files {self.path}"

    def folder(self, context: Context) -> Path:
        found = Path(context.path(self.path))
        if not found.is_dir():
            names = [entry.name for entry in found.parent.iterdir()] if found.parent.is_dir() else []
            raise ProjectError(
                "no-files",
                f"there is no folder '{self.path}' (looked for {found})",
                hint=did_you_mean(found.name, names, f"in {found.parent}"),
                exit_code=Exit.NOT_FOUND,
            )
        return found

    def listed(self, context: Context) -> dict[str, tuple[int, int]]:
        """The files by name, in the order in which they are read: time and size."""
        found = []
        for entry in self.folder(context).iterdir():
            if entry.name[0] not in "._" and entry.suffix == _SUFFIXES[self.format]:
                about = entry.stat()
                found.append((about.st_mtime_ns, entry.name, about.st_size))
        return {name: (moment, size) for moment, name, size in sorted(found)}

    def check(self, context: Context) -> None:
        """Refuse a folder that is not there, or whose columns are not known."""
        self.shape(context)

    def shape(self, context: Context) -> TableShape:
        """The columns that are declared or that the newest file has; files tell of no keys."""
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
        """Looks into the folder again and again."""
        mine = {name: table for name, table in tables.items() if isinstance(table, cls)}
        return reader.FilesReader(mine, shapes, after, context)
