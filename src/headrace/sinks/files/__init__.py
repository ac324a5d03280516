"""`type: files`: Parquet, JSON, CSV or text files in a folder."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from headrace.core.capabilities import (
    AppendsAfterSwitch,
    HoldsReport,
    ReadableAsStream,
    ReadsAllRows,
    Rewind,
    Rewindable,
)
from headrace.core.context import Batch, Context
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.lazy import lazy_modules
from headrace.core.places import ANY, Location
from headrace.core.rows import drain, structured
from headrace.core.schema import ddl_type
from headrace.core.sink import Delivery
from headrace.sinks._publish import Publication, forget_others, safe_name, withdraw, withdrawn
from headrace.sinks.files.text_lines import VALUE, final_folder, refuse, write

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrame
else:
    pq = lazy_modules("pyarrow.parquet")


class FilesSink(HoldsReport, Rewindable, AppendsAfterSwitch, ReadableAsStream, ReadsAllRows):
    """Files named `<flow>-<sink>-<generation>-<batch>-<n>` in a folder, whole from the moment they appear.

    Delivery: exactly once per generation of the flow; files are staged, listed in a manifest and renamed, and a
    repeated batch completes the renames. A rewound flow writes its rows again under new names. Order: none between
    files. Scale: one file or more per task and batch; the folder must be one that all workers and the
    driver share (a local disk, or a mounted one), since publishing is renaming: for object stores use `lake`.

    With `contains: lines` the texts of column `value` are the lines, verbatim, and other columns are not written. A
    value that is null or has a line break in it is a dead letter (`no-value`, `line-break`), as is one whose folder,
    named by `folder_column`, is invalid (`bad-folder-name`).
    """

    type: Literal["files"] = "files"
    path: str = Field(description="The folder, relative to the project. Made when missing.", examples=["out/orders"])
    contains: Literal["parquet", "json", "csv", "lines"] = Field(
        "parquet", description="Format of the files; `lines` are texts, one per line."
    )
    compression: Literal["none", "gzip", "snappy", "zstd", "lz4", "bzip2"] | None = Field(
        None,
        description="Default: zstd for parquet, none for others. bzip2 is not for parquet; lines may be none, gzip or "
        "bzip2.",
    )
    header: bool = Field(True, description="csv only: write the column names as the first line of each file.")
    partition_by: list[str] = Field(
        default=[], description="Columns that become folders, as in dt=2026-01-31.", examples=[["dt"]]
    )
    folder_column: str | None = Field(
        None,
        description="lines only: a column with the name of the folder, below `path`, that a line belongs into, or with "
        "a list of such names.",
        examples=["topic"],
    )
    rows_per_file: int | None = Field(None, ge=1, description="Begin another file after this many rows.")

    @model_validator(mode="after")
    def _fits(self) -> FilesSink:
        if self.contains == "lines":
            if self.partition_by:
                raise ValueError("lines have no columns for 'partition_by': use 'folder_column'")
            if self.compression not in (None, "none", "gzip", "bzip2"):
                raise ValueError("the compression of lines is none, gzip or bzip2")
        elif self.folder_column is not None:
            raise ValueError("'folder_column' is for 'contains: lines': use 'partition_by'")
        return self

    @property
    def guarantee(self) -> Delivery:
        """Files are staged, then published by renaming."""
        return "exactly_once"

    @property
    def target(self) -> str:
        return self.path

    @property
    def label(self) -> str:
        return f"{self.contains} files in {self.path}"

    def places(self, context: Context, texts: Mapping[str, Sequence[str]]) -> tuple[Location, ...]:
        folder = str(self._folder(context))
        if self.folder_column is None:
            return (Location("files", folder),)
        return tuple(Location("files", f"{folder}/{name}") for name in texts.get(self.folder_column, (ANY,)))

    def check(self, context: Context) -> None:
        """Refuse a path that is not a local folder, or not writable."""
        folder = self._folder(context)
        if folder.exists() and not folder.is_dir():
            raise ProjectError(
                "not-a-folder", f"{folder} is a file, and a folder is wanted", hint="choose another path"
            )
        present = next(parent for parent in (folder, *folder.parents) if parent.exists())
        if not os.access(present, os.W_OK):
            raise ProjectError("folder-not-writable", f"{present} may not be written", hint=f"chmod u+w {present}")

    def check_rows(self, context: Context, columns: Sequence[str], output: str, schema: pa.Schema | None) -> None:
        """Refuse columns that are missing or not texts, and output that replaces earlier rows."""
        if output == "update":
            raise ProjectError(
                "files-append-only",
                "files cannot replace rows, and the flow's output is 'update'",
                hint="set output: append on the flow, or use a lake sink with a key",
            )
        for key, name in self._columns():
            if name not in columns:
                hint = did_you_mean(name, columns, "columns")
                raise ProjectError("unknown-column", f"{key} names '{name}'", hint=hint)
            kind = schema.field(name).type if schema is not None and key != "partition_by" else pa.string()
            if key == "folder_column" and pa.types.is_list(kind):
                kind = kind.value_type
            if not pa.types.is_string(kind) and not pa.types.is_null(kind):
                message = f"{key} needs a string, and '{name}' is of type {ddl_type(kind)}"
                raise ProjectError("wrong-column-type", message, hint="cast it in the SQL")

    def _columns(self) -> list[tuple[str, str]]:
        """The required columns, with the option that requires them."""
        named = [("partition_by", name) for name in self.partition_by]
        named += [("contains: lines", VALUE)] if self.contains == "lines" else []
        return named + ([("folder_column", self.folder_column)] if self.folder_column is not None else [])

    def write_batch(self, rows: DataFrame, batch: Batch) -> None:
        series = safe_name(batch.flow, batch.sink, batch.generation)
        publication = Publication(self._folder(batch.context), series, batch.batch_id)
        if publication.is_written():
            drain(rows)
        else:
            size = publication.write(lambda staging: self._stage(rows, staging, batch), self._has_rows, self._place)
            batch.tally.add_bytes(batch.flow, batch.sink, size)
        publication.finish()

    def write_report(self, rows: DataFrame, batch: Batch) -> None:
        """Publish one file, then remove those of earlier runs."""
        self.write_batch(rows.coalesce(1), batch)
        forget_others(self._folder(batch.context), batch.flow, batch.sink, batch.generation, batch.batch_id)

    def rewind_effect(self, rewind: Rewind, replace: bool) -> str:
        if not replace:
            return f"{rewind.read_again}: their rows are written to new files, next to the existing ones"
        count = len(withdrawn(self._folder(rewind.context), rewind))
        return f"{count:,} file{'' if count == 1 else 's'} of later batches are deleted; {rewind.read_again}"

    def take_back(self, rewind: Rewind) -> None:
        withdraw(self._folder(rewind.context), rewind)

    def writer_options(self) -> dict[str, str]:
        """These options as options of Spark's writer."""
        options: dict[str, str] = {
            "compression": self.compression or ("zstd" if self.contains == "parquet" else "none")
        }
        if self.contains == "csv":
            options["header"] = str(self.header).lower()
        if self.contains == "json":
            options["ignoreNullFields"] = "false"
        if self.rows_per_file is not None:
            options["maxRecordsPerFile"] = str(self.rows_per_file)
        return options

    def _stage(self, rows: DataFrame, staging: Path, batch: Batch) -> None:
        if self.contains == "lines":
            write(rows, self.folder_column, self.writer_options(), staging)
            refuse(rows, staging, batch, self.label)
            return
        writer = structured(rows).write.format(self.contains).options(**self.writer_options())
        (writer.partitionBy(*self.partition_by) if self.partition_by else writer).save(staging.as_uri())

    def _place(self, folder: Path) -> Path | None:
        return final_folder(folder) if self.contains == "lines" else folder

    def _has_rows(self, file: Path) -> bool:
        """A task without rows may leave an empty file, which is not worth publishing."""
        if self.contains == "parquet":
            return bool(pq.read_metadata(file).num_rows)
        with pa.input_stream(str(file), compression="detect") as stream, io.BufferedReader(stream) as lines:
            if self.contains == "csv" and self.header:
                lines.readline()
            return bool(lines.read(1))

    def _folder(self, context: Context) -> Path:
        path = context.path(self.path)
        if "://" in path and not path.startswith("file://"):
            raise ProjectError(
                "files-not-local",
                f"'{self.path}' is not a folder of this machine",
                hint="write files to a mounted folder, or use a lake sink for object stores",
            )
        return Path(path.removeprefix("file://"))
