"""What a view keeps between batches: chunks of rows that add up, and one manifest per batch that names them.

A batch begins from the manifest of the one before it, whatever was written since, so a batch that runs again gives the
same. A manifest appears in one step, after all that it names. Chunks are merged as they become many.
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

AT_HAND = 20_000
"""A relation of up to so many rows is also held in memory: to read files takes longer."""
_MERGED = 8
"""So many chunks of one size become one of the next."""
_FOLD = 20_000
"""Deltas of fewer rows are not worth adding up, however small the base is."""
_TOGETHER = 1_000_000
"""No more rows are merged in memory."""
_LARGE, _BASE = 98, 99


class Chunk(msgspec.Struct, frozen=True):
    """A Parquet file, or a folder of some that Spark wrote, with rows of one relation."""

    name: str
    rows: int
    bytes: int
    level: int
    """How often it was merged; `_LARGE` for what Spark wrote, `_BASE` for what was added up."""


class RelationSize(msgspec.Struct, frozen=True):
    """How much is kept of a relation, for metrics."""

    rows: int
    bytes: int
    chunks: int


class _Manifest(msgspec.Struct, frozen=True):
    definition: str
    relations: dict[str, tuple[Chunk, ...]]

    def names(self) -> set[str]:
        """All that it needs."""
        return {chunk.name for chunks in self.relations.values() for chunk in chunks}


class ViewState:
    """The relations that one generation of a view keeps, in a folder of its own. One writer, one thread."""

    def __init__(self, folder: StatePath) -> None:
        self._folder = folder
        self._chunks: dict[str, tuple[Chunk, ...]] = {}
        self._at_hand: dict[str, pa.Table] = {}
        self._at: int | None = None
        """The batch after which the relations are as they are here; None while one is under way."""
        self._before: set[str] = set()
        self._written: set[str] | None = None
        """All that is in the folder, once that was looked up."""
        self._lent: set[str] = set()

    def begin(self, batch: int, definition: str) -> bool:
        """Go to where the batch before this one ended; whether there was one."""
        if self._at is None or self._at != batch - 1:
            before = self._read(batch - 1, definition) if batch > 0 else _Manifest(definition, {})
            self._chunks = dict(before.relations)
            self._at_hand = {name: self._load(chunks) for name, chunks in self._chunks.items() if _is_small(chunks)}
        self._at = None
        self._before = self._named()
        if self._written is None:
            self._written = {one.name for one in self._list() if not _is_manifest(one.name)}
        return batch > 0

    def _read(self, batch: int, definition: str) -> _Manifest:
        try:
            found = msgspec.json.decode(self._manifest(batch).read_bytes(), type=_Manifest)
        except FileNotFoundError:
            found = None
        if found is None or found.definition != definition:
            what = "is not there" if found is None else "is that of another query"
            raise ProjectError(
                "view-state",
                f"what the view kept after batch {batch} {what}, in {self._folder}",
                hint="begin anew: headrace run --new-generation FLOW",
                exit_code=Exit.CONFLICT,
            )
        return found

    def held(self) -> Mapping[str, RelationSize]:
        """How much is kept, by relation."""
        return {
            name: RelationSize(self.rows(name), sum(chunk.bytes for chunk in chunks), len(chunks))
            for name, chunks in self._chunks.items()
        }

    def rows(self, relation: str) -> int:
        """How many rows are kept, before they are added up."""
        return sum(chunk.rows for chunk in self._chunks.get(relation, ()))

    def at_hand(self, relation: str) -> pa.Table | None:
        """The rows of a small relation."""
        return self._at_hand.get(relation)

    def paths(self, relation: str) -> list[StatePath]:
        """The files and folders that have the rows."""
        return [self._folder / chunk.name for chunk in self._chunks.get(relation, ())]

    def place(self) -> StatePath:
        """Where Spark can write: rows of a relation for `adopt`, or such as are needed until the next batch begins."""
        name = f"{uuid.uuid4().hex}.spark"
        self._new(name)
        self._lent.add(name)
        return self._folder / name

    def add(self, relation: str, rows: pa.Table) -> None:
        """Add a few rows, and merge the chunks that have become many. They are the base where there was nothing."""
        if not rows.num_rows:
            return
        had = self._chunks.get(relation, ())
        self._put(relation, self._write(rows, 0 if had else _BASE))
        known = self._at_hand.pop(relation, None)
        if _is_small(self._chunks[relation]) and (known is not None or not had):
            self._at_hand[relation] = rows if known is None else pa.concat_tables([known, rows])
        self._merge(relation, 0)

    def adopt(self, relation: str, place: StatePath, rows: int) -> None:
        """Add what Spark wrote to a place. It is the base where there was nothing before."""
        make_durable(place)
        size = sum(file.stat().st_size for file in place.rglob("*.parquet"))
        self._put(relation, Chunk(place.name, rows, size, _LARGE if self._chunks.get(relation) else _BASE))
        self._at_hand.pop(relation, None)

    def is_due(self, relation: str) -> bool:
        """Whether the rows should be added up: the deltas have outgrown half of the base, or a small one by far."""
        base = sum(chunk.rows for chunk in self._chunks.get(relation, ()) if chunk.level == _BASE)
        return self.rows(relation) - base > min(max(base / 2, _FOLD), max(base * 8, _FOLD / 10))

    def fold(self, relation: str, rows: pa.Table | None = None, place: StatePath | None = None, count: int = 0) -> None:
        """Put rows that are added up in the place of all: a table, or what Spark wrote to a place."""
        self._chunks.pop(relation)
        self._at_hand.pop(relation, None)
        if place is not None:
            self.adopt(relation, place, count)
        elif rows is not None:
            self._put(relation, self._write(rows, _BASE))
            if rows.num_rows <= AT_HAND:
                self._at_hand[relation] = rows

    def commit(self, batch: int, definition: str) -> None:
        """Make durable what the relations are after this batch, and remove what no batch can begin from any more."""
        manifest = _Manifest(definition, self._chunks)
        write_atomically(self._manifest(batch), msgspec.json.encode(manifest))
        self._at = batch
        assert self._written is not None, "a batch was begun"
        for name in self._written - self._named() - self._before - self._lent:
            remove_tree(self._folder / name)
            (self._folder / name).unlink(missing_ok=True)
            self._written.discard(name)
        self._lent = set()
        for one in self._list() if batch % _MERGED == 0 else [self._manifest(batch - 2)]:
            if _is_manifest(one.name) and one.name not in (_name(batch), _name(batch - 1)):
                one.unlink(missing_ok=True)

    def _merge(self, relation: str, level: int) -> None:
        alike = [chunk for chunk in self._chunks[relation] if chunk.level == level]
        if len(alike) < _MERGED or sum(chunk.rows for chunk in alike) > _TOGETHER:
            return
        rows = self._load(alike)
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
        assert self._written is not None, "a batch was begun"
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
    """Whether the rows may be held in memory. What Spark wrote is left to Spark: its types of time are its own."""
    return sum(chunk.rows for chunk in chunks) <= AT_HAND and all(chunk.name.endswith(".parquet") for chunk in chunks)


def _readable(file: StatePath) -> object:
    return pa.BufferReader(file.read_bytes()) if isinstance(file, ObjectPath) else str(file)
