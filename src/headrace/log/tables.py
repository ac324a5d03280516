"""The log of one table group: weighted rows in Parquet, committed for all its tables together.

`commits/<sequence>.json` is written atomically and names the files of weighted rows in `parts/`; it also holds the
position of the source, the shapes and the complete tables. One process writes, any number read: a commit of a writer
that has not seen the newest commit is refused. `bases/<table>/<sequence>.json` names files that hold all rows of a
table as of a sequence, so that older parts need not be read and can be removed once no reader needs an older state.
`floor.json` marks up to where they were removed: a commit file at or before that is a leftover.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.core.context import Context
from headrace.core.files.state_files import StatePath, remove_tree, sync, write_atomically, write_new
from headrace.core.positions import Position
from headrace.core.tables import WEIGHT, TableShape
from headrace.log._commits import sealed, unsealed
from headrace.log._numbered import files_in, highest, number_of, numbered, numbers
from headrace.log._tablecommits import TableCommit, TableSegment, plain, shape_from_json, shape_to_json
from headrace.log.groups import group_id
from headrace.log.log import LogCutError, LogDamagedError, SegmentPart
from headrace.log.parts import digest_of

__all__ = ["LogMovedError", "TableLog", "TableSegment", "group_id", "plain", "table_log"]

_PART = re.compile(r"(?P<table>.+)-(?P<sequence>\d{12})-[0-9a-f]+\.parquet")
_IDENTITY, _FLOOR = "log.json", "floor.json"
# commits that a reader caches; older ones are read again
_REMEMBERED = 20_000


class LogMovedError(Exception):
    """Another writer has committed meanwhile: read the log again."""


def table_log(context: Context, group: str) -> TableLog:
    return TableLog(context.log_path / "tables" / group_id(group))


class TableLog:
    """The log of one table group, in one folder."""

    def __init__(self, folder: StatePath) -> None:
        self.folder = folder
        self._commits = folder / "commits"
        self._parts = folder / "parts"
        self._bases = folder / "bases"
        self._seen = 0
        self._newest: TableCommit | None = None
        self._named: dict[int, Mapping[str, tuple[SegmentPart, ...]]] = {}

    def id(self) -> str | None:
        """A random id of the log: a log that was removed and created again has another. None for an empty log."""
        try:
            file = self.folder / _IDENTITY
            return str(unsealed(file.read_bytes(), file.name)["id"])
        except FileNotFoundError:
            return None

    def end(self) -> int:
        """The newest sequence; 0 for an empty log. A single lookup of the next one, as long as there is none."""
        if self._seen == 0 or numbered(self._commits, self._seen + 1).is_file():
            self._seen = max(self._seen, highest(self._commits))
        return self._seen

    def begin(self) -> int:
        """The oldest sequence that was not removed: 1 when nothing was ever removed."""
        return self._floor() + 1

    def position(self) -> Position | None:
        """Where the source is read next, as of the newest commit."""
        newest = self._last()
        return None if newest is None else newest.segment.position

    def shapes(self) -> dict[str, TableShape]:
        """The shapes of all tables, as of the newest commit."""
        newest = self._last()
        return {} if newest is None else {name: shape_from_json(document) for name, document in newest.shapes.items()}

    def complete(self) -> frozenset[str]:
        """The tables whose first snapshot is complete."""
        newest = self._last()
        return frozenset() if newest is None else frozenset(newest.complete)

    def counts(self) -> dict[str, int]:
        """The number of rows of each table."""
        newest = self._last()
        return {} if newest is None else dict(newest.counts)

    def newest(self) -> TableSegment | None:
        commit = self._last()
        return None if commit is None else commit.segment

    def commit(
        self,
        changes: Mapping[str, pa.Table],
        position: Position,
        shapes: Mapping[str, TableShape],
        at: datetime | None,
        complete: Collection[str],
        *,
        after: int | None = None,
    ) -> int:
        """Commit weighted rows of tables atomically, and return the sequence. Also without rows, for a new position or
        new shapes.

        Raises LogMovedError when `after` is not the newest sequence, or when another writer is faster.
        """
        before = self._last()
        sequence = 1 if before is None else before.segment.sequence + 1
        if after is not None and after != sequence - 1:
            raise LogMovedError(f"{self.folder} is at {sequence - 1}, not at {after}")
        filled = {name: rows for name, rows in changes.items() if rows.num_rows}
        parts = {name: (self._put(name, sequence, rows, shapes[name]),) for name, rows in filled.items()}
        if parts:
            sync(self._parts)
        if sequence == 1:
            write_new(self.folder / _IDENTITY, sealed({"id": uuid.uuid4().hex[:12]}))
        segment = TableSegment(sequence, at, datetime.now(UTC), position, parts)
        counts = {name: (before.counts.get(name, 0) if before else 0) + _net(filled.get(name)) for name in shapes}
        shape_documents = {name: shape_to_json(shape) for name, shape in shapes.items()}
        commit = TableCommit(segment, shape_documents, tuple(complete), counts)
        # a writer that was suspended here may write where others have committed and removed meanwhile
        if not write_new(numbered(self._commits, sequence), commit.to_bytes()) or highest(self._commits) != sequence:
            self._seen, self._newest = 0, None
            raise LogMovedError(f"{self.folder} already has {sequence}")
        self._remember(commit)
        return sequence

    def after(self, sequence: int, limit: int = 64) -> list[TableSegment]:
        """The segments after a sequence, in order. Raises LogCutError when one of them was removed."""
        segments: list[TableSegment] = []
        while len(segments) < limit:
            commit = self._read(sequence + len(segments) + 1)
            if commit is None:
                break
            segments.append(commit.segment)
            self._remember(commit)
        # leftovers of removed commits can still be read
        if (segments or sequence < self.end()) and sequence < self._floor():
            raise LogCutError(f"{self.folder} begins at {self.begin()}, and {sequence + 1} is wanted")
        return segments

    def state(self, table: str, sequence: int) -> list[StatePath]:
        """Files of weighted rows that add up to the table at a sequence: a base, and the parts since. A file that was
        written before a column was added lacks it."""
        base, files = self._base(table, sequence)
        if base < self._floor():
            raise LogCutError(f"the state of '{table}' at {sequence} is kept no more")
        for number in range(base + 1, sequence + 1):
            files += [self.file(part) for part in self._parts_of(number).get(table, ())]
        return files

    def is_base(self, files: Sequence[StatePath]) -> bool:
        """Whether these files of a state are a base alone."""
        return bool(files) and all(str(file.parent.parent.parent) == str(self._bases) for file in files)

    def file(self, part: SegmentPart) -> StatePath:
        return self._parts / part.name

    def read(self, part: SegmentPart, shape: TableShape) -> pa.Table:
        """The weighted rows of a part with the columns of the shape, after a check of its content."""
        content = self.file(part).read_bytes()
        if digest_of(content) != part.digest:
            raise LogDamagedError(f"{part.name}: its checksum does not fit")
        return shaped(pq.read_table(pa.BufferReader(content)), shape)

    def rows(self, table: str, sequence: int, shape: TableShape) -> Iterator[pa.Table]:
        """The weighted rows of the state of a table, file by file."""
        for file in self.state(table, sequence):
            with file.open("rb") as opened:
                yield shaped(pq.read_table(opened), shape)

    def staging(self, table: str, sequence: int) -> StatePath:
        """A new folder for files that will become the base of a table at a sequence."""
        return self._bases / table / f"{sequence:012d}-{uuid.uuid4().hex[:8]}"

    def fold(self, table: str, sequence: int, files: Sequence[StatePath]) -> None:
        """Make files the base of a table: all its rows at a sequence, each once, in a folder from `staging`. The first
        of several writers wins."""
        for file in files:
            assert str(file.parent.parent) == str(self._bases / table), f"{file} is not where bases are kept"
            sync(file)
        for parent in {file.parent for file in files}:
            sync(parent)
        self._write_base(table, sequence, files)

    def retain(self, sequence: int) -> int:
        """Remove what is needed neither for states nor for segments from a sequence on, and return the oldest sequence
        that is left. Files of a table without a newer base stay."""
        last = self._last()
        if last is None:
            return 1
        sequence = min(sequence, last.segment.sequence)
        # the newest commit holds the position of the source
        floor = min(sequence, last.segment.sequence - 1)
        if floor > self._floor():
            for table in last.shapes:
                if self._newest_base(table, sequence) < floor:
                    self._write_base(table, sequence, self.state(table, sequence))
            write_atomically(self.folder / _FLOOR, sealed({"sequence": floor}))
        self._remove(floor, {table: self._newest_base(table, sequence) for table in last.shapes})
        return floor + 1

    def _remove(self, floor: int, bases: Mapping[str, int]) -> None:
        """Remove commits and parts up to a floor, and files that are older than the bases, unless a base has them."""
        for file in files_in(self._commits):
            if (number_of(file) or floor + 1) <= floor:
                file.unlink(missing_ok=True)
        needed = {str(file) for table in bases for file in self._based(table, bases[table])}
        folders = {file.rpartition("/")[0] for file in needed}
        for table, base in bases.items():
            for one in files_in(self._bases / table):
                number = number_of(one)
                if number is not None and number < base:
                    one.unlink(missing_ok=True)
                elif number is None and int(one.name.partition("-")[0]) < base and str(one) not in folders:
                    remove_tree(one)
        for file in files_in(self._parts):
            match = _PART.fullmatch(file.name)
            if match is not None and int(match["sequence"]) <= floor and str(file) not in needed:
                file.unlink(missing_ok=True)

    def _based(self, table: str, base: int) -> Iterator[StatePath]:
        """The files of a base and of all later ones."""
        for number in numbers(self._bases / table):
            if number >= base:
                yield from self._base(table, number)[1]

    def _write_base(self, table: str, sequence: int, files: Sequence[StatePath]) -> None:
        names = [str(file).removeprefix(f"{self.folder}/") for file in files]
        write_new(numbered(self._bases / table, sequence), sealed({"sequence": sequence, "files": names}))

    def _floor(self) -> int:
        """Up to where commits were removed."""
        try:
            return int(unsealed((self.folder / _FLOOR).read_bytes(), _FLOOR)["sequence"])
        except FileNotFoundError:
            return 0

    def _newest_base(self, table: str, sequence: int) -> int:
        """The newest base from which states of a table from a sequence on can be built; 0 without any."""
        return max((number for number in numbers(self._bases / table) if number <= sequence), default=0)

    def _base(self, table: str, sequence: int) -> tuple[int, list[StatePath]]:
        """The sequence of the newest base that is not after this one, and its files."""
        base = self._newest_base(table, sequence)
        if base == 0:
            return 0, []
        file = numbered(self._bases / table, base)
        try:
            names = unsealed(file.read_bytes(), file.name)["files"]
        except FileNotFoundError:
            raise LogCutError(f"the state of '{table}' at {sequence} is kept no more") from None
        return base, [self.folder / name for name in names]

    def _parts_of(self, sequence: int) -> Mapping[str, tuple[SegmentPart, ...]]:
        parts = self._named.get(sequence)
        if parts is not None:
            return parts
        commit = self._read(sequence)
        if commit is None:
            raise LogCutError(f"{self.folder} has no {sequence}: it begins at {self.begin()} and ends at {self.end()}")
        self._remember(commit)
        return commit.segment.parts

    def _remember(self, commit: TableCommit) -> None:
        sequence = commit.segment.sequence
        self._named[sequence] = commit.segment.parts
        if len(self._named) > _REMEMBERED:
            del self._named[next(iter(self._named))]
        self._seen = max(self._seen, sequence)
        if self._newest is None or sequence >= self._newest.segment.sequence:
            self._newest = commit

    def _last(self) -> TableCommit | None:
        end = self.end()
        if end and (self._newest is None or self._newest.segment.sequence != end):
            commit = self._read(end)
            if commit is None:
                raise LogDamagedError(f"{numbered(self._commits, end)} is missing")
            self._newest = commit
        return self._newest

    def _read(self, sequence: int) -> TableCommit | None:
        file = numbered(self._commits, sequence)
        try:
            return TableCommit.from_bytes(file.read_bytes(), file.name)
        except FileNotFoundError:
            return None

    def _put(self, table: str, sequence: int, rows: pa.Table, shape: TableShape) -> SegmentPart:
        out = pa.BufferOutputStream()
        schema = plain(shape).weighted
        pq.write_table(rows.select(schema.names).cast(schema), out, compression="zstd", write_page_checksum=True)
        content = out.getvalue().to_pybytes()
        digest = digest_of(content)
        name = f"{table}-{sequence:012d}-{digest[:12]}.parquet"
        write_atomically(self._parts / name, content)
        return SegmentPart(name, rows.num_rows, len(content), digest)


def shaped(rows: pa.Table, shape: TableShape) -> pa.Table:
    """Weighted rows with the columns of a newer shape; missing columns are null."""
    schema = shape.weighted
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _net(rows: pa.Table | None) -> int:
    return 0 if rows is None else int(pc.sum(rows.column(WEIGHT)).as_py() or 0)
