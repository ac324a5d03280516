"""Reads the commits of Delta tables. A position is, by table, `{"version": 12, "id": "…"}`: all up to that commit.

It has no version while all rows are read, so that a new reader reads all rows again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import QueryBuilder
from deltalake.exceptions import DeltaError

from headrace.core.context import Context
from headrace.core.positions import Position
from headrace.core.tables import CapturedBatch, RowChange, TableReader, TableShape
from headrace.systems.delta import columns_of, keeps_change_feed
from headrace.systems.services import service_unavailable

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from headrace.tables.lake import LakeTable

_PAGE = 50_000
_GONE = pa.array(["delete", "update_preimage"])
_logger = logging.getLogger(__name__)


@dataclass
class _FollowedLake:
    """One table and the last commit that was read."""

    name: str
    source: LakeTable
    shape: TableShape
    version: int | None
    id: str | None
    table: DeltaTable | None = None


class LakeReader(TableReader):
    """Checks for new commits regularly."""

    def __init__(
        self,
        tables: Mapping[str, LakeTable],
        shapes: Mapping[str, TableShape],
        after: Position | None,
        context: Context,
    ) -> None:
        self._context = context
        self._tables = []
        for name, source in tables.items():
            known = (after or {}).get(name, {})
            self._tables.append(_FollowedLake(name, source, shapes[name], known.get("version"), known.get("id")))
        self._every = min(source.every for source in tables.values()).total_seconds()
        self._due = 0.0
        self._found: Iterator[CapturedBatch] = iter(())

    def read(self, seconds: float) -> CapturedBatch | None:
        """The next commit, or the next part of all rows."""
        until = time.monotonic() + seconds
        while True:
            batch = next(self._found, None)
            if batch is not None:
                return batch
            # nothing to wait on but the time
            time.sleep(max(0.0, min(self._due, until) - time.monotonic()))
            if time.monotonic() < self._due:
                return None
            self._due = time.monotonic() + self._every
            self._found = self._look()

    def confirm(self, position: Position) -> None:
        """Nothing: the table has its own retention."""

    def close(self) -> None:
        """Nothing is held open."""

    def _look(self) -> Iterator[CapturedBatch]:
        for followed in self._tables:
            try:
                table = self._newest(followed)
                if followed.version is None or followed.id != str(table.metadata().id):
                    yield from self._whole(followed, table)
                elif table.version() > followed.version:
                    yield from self._commits(followed, table)
            except (DeltaError, OSError) as error:
                raise service_unavailable(followed.source.label, str(error).splitlines()[0][:300]) from error

    def _newest(self, followed: _FollowedLake) -> DeltaTable:
        if followed.table is None:
            followed.table = followed.source.open(self._context)
        followed.table.update_incremental()
        return followed.table

    def _commits(self, followed: _FollowedLake, table: DeltaTable) -> Iterator[CapturedBatch]:
        """The changes of each commit from the feed; all rows where there is no feed."""
        newest, begun = table.version(), followed.version or 0
        if not keeps_change_feed(table):
            yield from self._whole(followed, table)
            return
        try:
            for version in range(begun + 1, newest + 1):
                changes = pa.RecordBatchReader.from_stream(table.load_cdf(version, version)).read_all()
                grown = self._grow(followed, _columns_in(changes, followed.shape, columns_of(table)))
                followed.version = version
                if changes.num_rows or grown:
                    yield self._commit(followed, changes, grown)
        except DeltaError as error:
            _logger.warning("%s: the change feed ends, all rows are read: %s", followed.source.label, error)
            yield from self._whole(followed, table)

    def _commit(self, followed: _FollowedLake, changes: pa.Table, grown: dict[str, TableShape]) -> CapturedBatch:
        gone = pc.is_in(changes.column("_change_type").cast(pa.string()), _GONE)
        both = _fitted(changes, followed.shape.columns)
        rows, key = both.filter(pc.invert(gone)), list(followed.shape.key)
        present = set(_tuples(rows.select(key)))
        deleted = [key for key in _tuples(both.filter(gone).select(key)) if key not in present]
        moments = changes.column("_commit_timestamp")
        return CapturedBatch(
            position=self._position(),
            changes=[RowChange(followed.name, None, key) for key in deleted],
            rows={followed.name: rows} if rows.num_rows else {},
            shapes=grown,
            at=_utc(pc.max(moments).as_py()) if changes.num_rows else None,
        )

    def _whole(self, followed: _FollowedLake, table: DeltaTable) -> Iterator[CapturedBatch]:
        """All rows as of one commit; missing rows are deleted at the end."""
        version, followed.version, followed.id = table.version(), None, str(table.metadata().id)
        grown = self._grow(followed, columns_of(table))
        yield CapturedBatch(position=self._position(), begins=frozenset({followed.name}), shapes=grown)
        result = QueryBuilder().register("rows", table).execute("SELECT * FROM rows")
        for batch in pa.RecordBatchReader.from_stream(result):
            page = _fitted(pa.Table.from_batches([batch]), followed.shape.columns)
            for begin in range(0, page.num_rows, _PAGE):
                yield CapturedBatch(position=self._position(), rows={followed.name: page.slice(begin, _PAGE)})
        followed.version = version
        yield CapturedBatch(position=self._position(), ends=frozenset({followed.name}))

    def _grow(self, followed: _FollowedLake, columns: pa.Schema) -> dict[str, TableShape]:
        new = [column for column in columns if column.name not in followed.shape.columns.names]
        if not new:
            return {}
        followed.shape = TableShape(pa.schema([*followed.shape.columns, *new]), followed.shape.key)
        return {followed.name: followed.shape}

    def _position(self) -> Position:
        position: dict[str, Any] = {}
        for followed in self._tables:
            position[followed.name] = (
                {} if followed.version is None else {"version": followed.version, "id": followed.id}
            )
        return position


def _columns_in(changes: pa.Table, known: TableShape, newest: pa.Schema) -> pa.Schema:
    """The columns of a commit; new ones have the types of the table."""
    new = [column for column in newest if column.name in changes.column_names]
    return pa.schema([*known.columns, *(column for column in new if column.name not in known.columns.names)])


def _fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with exactly these columns; missing columns are null."""
    columns = [
        rows.column(column.name).cast(column.type)
        if column.name in rows.column_names
        else pa.nulls(rows.num_rows, column.type)
        for column in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _tuples(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in rows.columns), strict=True)


def _utc(moment: Any) -> datetime | None:
    return moment.replace(tzinfo=UTC) if isinstance(moment, datetime) and moment.tzinfo is None else moment
