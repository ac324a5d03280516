"""`type: files`: a file, a folder or a glob, as a batch or as a stream of new files."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from headrace.core.context import Context, ReadContext
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.options.durations import Duration, spark_interval
from headrace.core.places import Location
from headrace.core.runtime.lazy import lazy_modules
from headrace.core.schema import from_ddl, to_ddl
from headrace.core.source import RecordSource, RowSource
from headrace.sources.files.lines import first_lines, number_lines
from headrace.sources.files.paths import base_folder, folders_of, is_glob, is_local, matching_files, partition_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.sources.files import containers
else:
    containers = lazy_modules("headrace.sources.files.containers")

_FOR_EVER = timedelta(days=36_500)
_BINARY_FILE = from_ddl("path string, modificationTime timestamp, length bigint, content binary")
"""The columns of Spark's reader of whole files, which a stream must declare."""


class FilesSource(RecordSource, RowSource):
    """Lines of text files (for a format: json, csv, raw …), or the rows of Parquet or Avro files.

    As a stream it reads every file once, and new files as they appear, so move complete files into the folder; names
    that start with `_` or `.` are ignored. Files ending in .gz, .bz2 or .zst are decompressed.
    Delivery: exactly once into replay-safe sinks. Order: none between files; lines of a file in their order per block.
    Scale: the names of all files that were read are in the driver's memory, some 200 bytes each, unless `max_age` is
    set. A line's position (`_file`, `_block`, `_row`) is the same on replay as long as Spark splits files in the same
    way, that is with the same number of cores; rows of Parquet and Avro files are counted from the start of the file.
    """

    metadata: ClassVar[dict[str, str]] = {
        "_file": "string",
        "_block": "bigint",
        "_row": "bigint",
        "_timestamp": "timestamp",
    }
    position: ClassVar[tuple[str, ...]] = ("_file", "_block", "_row")

    type: Literal["files"] = "files"
    path: str = Field(
        description="A file, a folder, or a glob with * ? [a-z] {a,b}; relative to the project. Folders named like "
        "dt=2026-01-31 are columns of Parquet and Avro rows.",
        min_length=1,
        examples=["data/orders", "data/*.json.gz"],
    )
    contains: Literal["lines", "parquet", "avro"] = Field(
        "lines", description="Lines, which the stream's format decodes, or files that hold columns themselves."
    )
    columns: str | None = Field(
        None,
        description="Columns of Parquet or Avro files as DDL. Default: those of the newest file.",
        examples=["id bigint, amount double"],
    )
    header: bool = Field(
        False, description="Lines only: the first line of the oldest file is a header; lines equal to it are dropped."
    )
    recursive: bool = Field(False, description="Read folders within folders too.")
    missing: Literal["refuse", "wait"] = Field(
        "refuse",
        description="What to do when the path matches nothing yet: refuse to start, since the path may be wrong, or "
        "wait for the first file, e.g. of another flow; an existing folder is always waited for.",
    )
    max_files_per_trigger: int = Field(1000, ge=1, description="At most this many new files per batch.")
    max_age: Duration | None = Field(
        None, description="Ignore files that are this much older than the newest. Default: never ignore a file."
    )

    @model_validator(mode="after")
    def _check_options(self) -> FilesSource:
        if self.columns is not None and self.contains == "lines":
            raise ValueError("'columns' is for parquet and avro; the columns of lines belong to the stream's format")
        if self.header and self.contains != "lines":
            raise ValueError(f"'header' is for lines, not for {self.contains}")
        if self.missing == "wait" and not is_glob(self.path):
            raise ValueError("'missing: wait' needs a glob: Spark requires a plain folder to exist at the start")
        return self

    @property
    def yields_rows(self) -> bool:
        """Rows of Parquet and Avro, bytes of lines."""
        return self.contains != "lines"

    @property
    def label(self) -> str:
        return f"files {self.path}"

    @property
    def reads(self) -> str:
        """The folder or glob, and the kind of its files."""
        return f"{self.contains} of {self.path}" + (" and below" if self.recursive else "")

    def places(self, context: Context) -> tuple[Location, ...]:
        return tuple(Location("files", folder) for folder in folders_of(context.path(self.path), self.recursive))

    def check(self, context: Context) -> None:
        """The path matches readable files, or is a folder in which files may still appear."""
        path = context.path(self.path)
        if not is_local(path):
            return
        files = matching_files(path, self.recursive)
        if (
            not files
            and self.missing == "refuse"
            and (is_glob(path) or not Path(path.removeprefix("file://")).is_dir())
        ):
            raise self._no_files(path)
        for file in files:
            if not os.access(file, os.R_OK):
                raise ProjectError("file-unreadable", f"{file} may not be read", hint=f"chmod +r {file}")

    def sample(self, context: Context, limit: int) -> list[bytes]:
        """Lines of the oldest files, without the header."""
        path = context.path(self.path)
        header = self._header(context)
        lines: list[bytes] = []
        for file in matching_files(path, self.recursive) if is_local(path) else []:
            lines += [line for line in first_lines(file, limit + 1) if line != header]
            if len(lines) >= limit:
                break
        return lines[:limit]

    def row_schema(self, context: Context) -> pa.Schema:
        """The declared columns, or those of the newest file and its folders."""
        path = context.path(self.path)
        files = matching_files(path, self.recursive) if is_local(path) else []
        if self.columns is not None:
            stored = from_ddl(self.columns)
        elif files:
            stored = containers.stored_schema(files[-1], self.contains)
        else:
            raise self._no_files(path, "so their columns are not known: give them in 'columns'")
        base = base_folder(path).removeprefix("file://")
        folders = partition_values(str(files[-1]), base) if files and not self.recursive else {}
        return pa.schema([*stored, *((name, pa.string()) for name in folders if name not in stored.names)])

    def reader_options(self, reading: ReadContext) -> dict[str, str]:
        return {
            "basePath": base_folder(reading.path(self.path)),
            "maxFilesPerTrigger": str(self.max_files_per_trigger),
            # Spark's default is a week: older files that are added later would be ignored silently
            "maxFileAge": spark_interval(self.max_age or _FOR_EVER).replace(" milliseconds", "ms"),
            "recursiveFileLookup": str(self.recursive).lower(),
        }

    def read(self, spark: SparkSession, reading: ReadContext) -> DataFrame:
        """The lines or rows, each with its position."""
        match self.contains:
            case "lines":
                return self._lines(spark, reading)
            case "parquet":
                return self._parquet(spark, reading)
            case "avro":
                return self._avro(spark, reading)

    def _load(self, spark: SparkSession, reading: ReadContext, format: str, schema: pa.Schema | None) -> DataFrame:
        options = self.reader_options(reading)
        path = reading.path(self.path)
        if not is_glob(path) and is_local(path) and Path(path.removeprefix("file://")).is_file():
            options["basePath"] = path.rpartition("/")[0]
            # a stream takes its path as a folder unless it is a pattern
            path = f"{path[:-1]}[{path[-1]}]" if reading.streaming else path
        if reading.streaming:
            stream = spark.readStream.format(format).options(**options)
            return (stream if schema is None else stream.schema(to_ddl(schema))).load(path)
        batch = spark.read.format(format).options(**options)
        return (batch if schema is None else batch.schema(to_ddl(schema))).load(path)

    def _lines(self, spark: SparkSession, reading: ReadContext) -> DataFrame:
        from pyspark.sql import functions as sf
        from pyspark.sql.pandas.functions import arrow_udf

        header = self._header(reading.context)
        # Spark refuses its own row numbers (monotonically_increasing_id) in streams. Only the place of a line goes to
        # Python and back, not the line; a filter must not be moved before the counting, hence "nondeterministic".
        numbered = arrow_udf(number_lines, "bigint").asNondeterministic()  # type: ignore[call-overload]
        lines = self._load(spark, reading, "text", None).select(
            sf.col("value").cast("binary").alias("value"),
            sf.col("_metadata.file_path").alias("_file"),
            sf.col("_metadata.file_block_start").alias("_block"),
            numbered(sf.xxhash64("_metadata.file_path", "_metadata.file_block_start")).alias("_row"),
            sf.col("_metadata.file_modification_time").alias("_timestamp"),
        )
        return lines if header is None else lines.where(sf.col("value") != sf.lit(header))

    def _parquet(self, spark: SparkSession, reading: ReadContext) -> DataFrame:
        schema = self.row_schema(reading.context)
        return self._load(spark, reading, "parquet", schema).selectExpr(
            *(f"`{name}`" for name in schema.names),
            "_metadata.file_path as _file",
            "0L as _block",
            "_metadata.row_index as _row",
            "_metadata.file_modification_time as _timestamp",
        )

    def _avro(self, spark: SparkSession, reading: ReadContext) -> DataFrame:
        schema = self.row_schema(reading.context)
        # without its column `content` this only lists the files
        files = self._load(spark, reading, "binaryFile", _BINARY_FILE).select("path", "modificationTime")
        return files.mapInArrow(
            containers.ReadContainers(schema, base_folder(reading.path(self.path))), self._ddl(schema)
        )

    def _ddl(self, schema: pa.Schema) -> str:
        return ", ".join([to_ddl(schema), *(f"{name} {kind}" for name, kind in self.metadata.items())])

    def _header(self, context: Context) -> bytes | None:
        if not self.header:
            return None
        path = context.path(self.path)
        if not is_local(path):
            raise ProjectError("header-not-local", f"'header' needs files on this machine, not {path}")
        for file in matching_files(path, self.recursive):
            for line in first_lines(file, 1):
                return line
        raise self._no_files(path, "so the header is not known: start with one file")

    def _no_files(self, path: str, consequence: str = "") -> ProjectError:
        parent = Path(
            base_folder(path).removeprefix("file://") if is_glob(path) else path.removeprefix("file://")
        ).parent
        names = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
        message = f"no files match '{self.path}' (looked for {path})"
        return ProjectError(
            "no-files",
            f"{message}, {consequence}" if consequence else message,
            hint=did_you_mean(Path(path).name, names, f"in {parent}"),
        )
