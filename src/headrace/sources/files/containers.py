"""Files that hold columns: their schema without Spark, and the rows of Avro containers in a Python worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from headrace.core.encoding.avro import container_schema, read_container
from headrace.core.errors import ProjectError
from headrace.core.schema import from_ddl, to_ddl
from headrace.sources.files.paths import partition_values


@dataclass
class ReadContainers:
    """Reads the rows of Avro containers, followed by the columns `_file, _block, _row, _timestamp`."""

    schema: pa.Schema
    base: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows of the files named in `path`, changed at `modificationTime`."""
        for batch in batches:
            for path, changed in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                yield from self._rows(path, changed)

    def _rows(self, path: str, changed: pa.Scalar) -> Iterator[pa.RecordBatch]:
        plain = "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:") else path
        folders = partition_values(plain, self.base.removeprefix("file://"))
        names = [*self.schema.names, "_file", "_block", "_row", "_timestamp"]
        row = 0
        with _open(plain) as file:
            held = container_schema(file).names
            file.seek(0)
            for rows in read_container(file, [name for name in self.schema.names if name in held]):
                length = rows.num_rows
                columns = [_column(field, rows, folders) for field in self.schema]
                columns += [pa.repeat(path, length), pa.repeat(0, length)]
                columns += [pa.array(range(row, row + length), pa.int64()), pa.repeat(changed, length)]
                yield pa.RecordBatch.from_arrays(columns, names)
                row += length


def _column(field: pa.Field, rows: pa.RecordBatch, folders: dict[str, str]) -> pa.Array:
    """A column of the file, or else of its folders; null in files without it."""
    if field.name in rows.schema.names:
        return rows.column(field.name).cast(field.type)
    value = unquote(folders[field.name]) if field.name in folders else None
    return pa.repeat(pa.scalar(value, pa.string()), rows.num_rows).cast(field.type)


def _open(path: str) -> BinaryIO:
    if "://" not in path:
        return Path(path).open("rb")
    system, name = FileSystem.from_uri(path)
    return cast(BinaryIO, system.open_input_file(name))


def stored_schema(file: Path, contains: str) -> pa.Schema:
    """The columns of a file as Spark reads them."""
    try:
        if contains == "parquet":
            schema = pq.read_schema(file).remove_metadata()
        else:
            with file.open("rb") as container:
                schema = container_schema(container)
        return from_ddl(to_ddl(schema))
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise ProjectError(
            "files-not-understood",
            f"the columns of {file} cannot be read as {contains}: {str(error).splitlines()[0][:200]}",
            hint="check 'contains', or declare 'columns'",
        ) from error
