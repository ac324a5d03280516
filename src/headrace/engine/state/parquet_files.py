"""Small Parquet files of a state folder, local or on an object store."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from headrace.core.files.objects import ObjectPath
from headrace.core.files.state_files import StatePath, write_atomically

_READERS = 8


def write_table(file: StatePath, table: pa.Table, *, compression: str = "snappy", durable: bool = False) -> None:
    out = pa.BufferOutputStream()
    pq.write_table(table, out, compression=compression)
    write_atomically(file, out.getvalue().to_pybytes(), durable=durable)


def write_parts(file: StatePath, schema: pa.Schema, parts: Iterable[pa.Table]) -> None:
    """Write a file from parts, without all rows in memory at once."""
    if isinstance(file, Path):
        _write_parts(file, schema, parts)
        return
    with tempfile.TemporaryDirectory() as scratch:
        local = Path(scratch) / file.name
        _write_parts(local, schema, parts)
        file.put(local)


def _write_parts(file: Path, schema: pa.Schema, parts: Iterable[pa.Table]) -> None:
    with pq.ParquetWriter(file, schema) as writer:
        for part in parts:
            writer.write_table(part)


def read_tables(files: Sequence[StatePath], schema: pa.Schema | None, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of all files, in their order; columns of the schema that a file does not have are null."""
    names = None if columns is None else list(columns)
    local = [str(file) for file in files if isinstance(file, Path)]
    if len(local) == len(files):
        return ds.dataset(local, schema=schema).to_table(columns=names)
    with ThreadPoolExecutor(_READERS) as pool:
        fragments = pool.map(_fragment, files)
        return pa.concat_tables([fragment.to_table(schema=schema, columns=names) for fragment in fragments])


def rows_in(file: StatePath) -> int:
    return int(pq.read_metadata(file if isinstance(file, Path) else pa.BufferReader(file.read_bytes())).num_rows)


def _fragment(file: StatePath) -> ds.Fragment:
    source = pa.BufferReader(file.read_bytes()) if isinstance(file, ObjectPath) else str(file)
    return ds.ParquetFileFormat().make_fragment(source)
