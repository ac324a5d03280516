"""The state of a view: chunks of weighted rows, and one manifest per batch that lists them.

A batch starts from the manifest of the batch before it, whatever was written since, so a repeated batch gives the same
result. A manifest is written atomically, after all its chunks. Chunks are merged when they become many.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.core.errors import Exit, ProjectError
from headrace.core.files.objects import ObjectPath
from headrace.core.files.state_files import StatePath, make_durable, remove_tree, write_atomically

IN_MEMORY_ROWS = 20_000
"""A relation of up to this many rows is also held in memory: reading files takes longer."""
_CHUNKS_TO_MERGE = 8
"""This many chunks of one level are merged into one of the next."""
_MIN_DELTA_ROWS = 20_000
"""Fewer delta rows are not worth a consolidation, however small the base is."""
_MAX_MERGED_ROWS = 1_000_000
"""The most rows that are merged in memory."""
_LARGE, _BASE = 98, 99


class Chunk(msgspec.Struct, frozen=True):
    """Rows of one relation: a Parquet file, or a folder of files written by Spark."""

    name: str
    rows: int
    bytes: int
    level: int
    """How often it was merged; `_LARGE`: written by Spark; `_BASE`: consolidated."""


class RelationSize(msgspec.Struct, frozen=True):
    """The size of a stored relation, for metrics."""

    rows: int
    bytes: int
    chunks: int


class _Manifest(msgspec.Struct, frozen=True):
    definition: str
    relations: dict[str, tuple[Chunk, ...]]

    def names(self) -> set[str]:
        return {chunk.name for chunks in self.relations.values() for chunk in chunks}


class ViewState:
    """The stored relations of one generation of a view, in one folder. One writer, one thread."""

    def __init__(self, folder: StatePath) -> None:
        self._folder = folder
        self._chunks: dict[str, tuple[Chunk, ...]] = {}
        self._in_memory: dict[str, pa.Table] = {}
        self._batch: int | None = None
        """The last batch that is included; None while a batch runs."""
        self._previous: set[str] = set()
        self._written: set[str] | None = None
        """The chunks in the folder, once listed."""
        self._unadopted: set[str] = set()

    def begin(self, batch: int, definition: str) -> bool:
        """Load the state after the previous batch; returns whether there is one."""
        if self._batch is None or self._batch != batch - 1:
            manifest = self._read(batch - 1, definition) if batch > 0 else _Manifest(definition, {})
            self._chunks = dict(manifest.relations)
            self._in_memory = {name: self._load(chunks) for name, chunks in self._chunks.items() if _is_small(chunks)}
        self._batch = None
        self._previous = self._named()
        if self._written is None:
            self._written = {file.name for file in self._list() if not _is_manifest(file.name)}
        return batch > 0

    def _read(self, batch: int, definition: str) -> _Manifest:
        try:
            manifest = msgspec.json.decode(self._manifest(batch).read_bytes(), type=_Manifest)
        except FileNotFoundError:
            manifest = None
        if manifest is None or manifest.definition != definition:
            problem = "does not exist" if manifest is None else "belongs to another query"
            raise ProjectError(
                "view-state",
                f"the state of the view after batch {batch} {problem}, in {self._folder}",
                hint="start a new generation: headrace run --new-generation FLOW",
                exit_code=Exit.CONFLICT,
            )
        return manifest

    def sizes(self) -> Mapping[str, RelationSize]:
        return {
            name: RelationSize(self.rows(name), sum(chunk.bytes for chunk in chunks), len(chunks))
            for name, chunks in self._chunks.items()
        }

    def rows(self, relation: str) -> int:
        """The number of stored rows, before consolidation."""
        return sum(chunk.rows for chunk in self._chunks.get(relation, ()))

    def in_memory(self, relation: str) -> pa.Table | None:
        """The rows of a small relation; None if it is not held in memory."""
        return self._in_memory.get(relation)

    def paths(self, relation: str) -> list[StatePath]:
        """The files and folders of the rows."""
        return [self._folder / chunk.name for chunk in self._chunks.get(relation, ())]

    def new_folder(self) -> StatePath:
        """A folder for Spark to write to: rows for `add_written`, or rows needed until the next batch begins."""
        name = f"{uuid.uuid4().hex}.spark"
        self._new(name)
        self._unadopted.add(name)
        return self._folder / name

    def add(self, relation: str, rows: pa.Table) -> None:
        """Add a few rows, and merge chunks if there are many. The first rows are the base."""
        if not rows.num_rows:
            return
        existing = self._chunks.get(relation, ())
        self._put(relation, self._write(rows, 0 if existing else _BASE))
        in_memory = self._in_memory.pop(relation, None)
        if _is_small(self._chunks[relation]) and (in_memory is not None or not existing):
            self._in_memory[relation] = rows if in_memory is None else pa.concat_tables([in_memory, rows])
        self._merge(relation, 0)

    def add_written(self, relation: str, folder: StatePath, rows: int) -> None:
        """Add rows that Spark wrote to a folder. The first rows are the base."""
        make_durable(folder)
        size = sum(file.stat().st_size for file in folder.rglob("*.parquet"))
        self._put(relation, Chunk(folder.name, rows, size, _LARGE if self._chunks.get(relation) else _BASE))
        self._in_memory.pop(relation, None)

    def needs_consolidation(self, relation: str) -> bool:
        """Whether to consolidate: the deltas have outgrown half of the base, or a small base by far."""
        base = sum(chunk.rows for chunk in self._chunks.get(relation, ()) if chunk.level == _BASE)
        return self.rows(relation) - base > min(max(base / 2, _MIN_DELTA_ROWS), max(base * 8, _MIN_DELTA_ROWS / 10))

    def consolidate(
        self, relation: str, rows: pa.Table | None = None, folder: StatePath | None = None, count: int = 0
    ) -> None:
        """Replace all rows by consolidated ones: a table, or a folder that Spark wrote."""
        self._chunks.pop(relation)
        self._in_memory.pop(relation, None)
        if folder is not None:
            self.add_written(relation, folder, count)
        elif rows is not None:
            self._put(relation, self._write(rows, _BASE))
            if rows.num_rows <= IN_MEMORY_ROWS:
                self._in_memory[relation] = rows

    def commit(self, batch: int, definition: str) -> None:
        """Write the manifest of this batch, and remove chunks and manifests that no batch can start from."""
        manifest = _Manifest(definition, self._chunks)
        write_atomically(self._manifest(batch), msgspec.json.encode(manifest))
        self._batch = batch
        assert self._written is not None, "begin() was called"
        for name in self._written - self._named() - self._previous - self._unadopted:
            remove_tree(self._folder / name)
            (self._folder / name).unlink(missing_ok=True)
            self._written.discard(name)
        self._unadopted = set()
        for file in self._list() if batch % _CHUNKS_TO_MERGE == 0 else [self._manifest(batch - 2)]:
            if _is_manifest(file.name) and file.name not in (_name(batch), _name(batch - 1)):
                file.unlink(missing_ok=True)

    def _merge(self, relation: str, level: int) -> None:
        same_level = [chunk for chunk in self._chunks[relation] if chunk.level == level]
        if len(same_level) < _CHUNKS_TO_MERGE or sum(chunk.rows for chunk in same_level) > _MAX_MERGED_ROWS:
            return
        rows = self._load(same_level)
        self._chunks[relation] = tuple(chunk for chunk in self._chunks[relation] if chunk.level != level)
        self._put(relation, self._write(rows, level + 1))
        self._merge(relation, level + 1)

    def _load(self, chunks: Sequence[Chunk]) -> pa.Table:
        return pa.concat_tables([pq.read_table(_readable(self._folder / chunk.name)) for chunk in chunks])

    def _write(self, rows: pa.Table, level: int) -> Chunk:
        name = f"{uuid.uuid4().hex}.parquet"
        out = pa.BufferOutputStream()
        pq.write_table(rows, out)
        content = out.getvalue().to_pybytes()
        self._new(name)
        write_atomically(self._folder / name, content)
        return Chunk(name, rows.num_rows, len(content), level)

    def _put(self, relation: str, chunk: Chunk) -> None:
        self._chunks[relation] = (*self._chunks.get(relation, ()), chunk)

    def _new(self, name: str) -> None:
        assert self._written is not None, "begin() was called"
        self._written.add(name)

    def _named(self) -> set[str]:
        return _Manifest("", self._chunks).names()

    def _list(self) -> list[StatePath]:
        try:
            return list(self._folder.iterdir())
        except FileNotFoundError:
            return []

    def _manifest(self, batch: int) -> StatePath:
        return self._folder / _name(batch)


def _name(batch: int) -> str:
    return f"{batch:012}.json"


def _is_manifest(name: str) -> bool:
    return name.endswith(".json")


def _is_small(chunks: Sequence[Chunk]) -> bool:
    """Whether the rows may be held in memory. Spark's own files are excluded: their timestamp types differ."""
    return sum(chunk.rows for chunk in chunks) <= IN_MEMORY_ROWS and all(
        chunk.name.endswith(".parquet") for chunk in chunks
    )


def _readable(file: StatePath) -> object:
    return pa.BufferReader(file.read_bytes()) if isinstance(file, ObjectPath) else str(file)
