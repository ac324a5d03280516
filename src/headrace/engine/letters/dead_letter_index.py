"""The index of dead letters and late rows, with the status of each. Works without Spark.

The index is an Arrow table without the bytes of the records: a million dead letters take about half a GB at the peak.
Bytes and details are fetched only for the records that are shown, or file by file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import Exit, ProjectError
from headrace.core.files.state_files import StatePath
from headrace.core.schema import TIMESTAMP
from headrace.engine.letters.dead_letter_audit import AuditLog, keys_of
from headrace.engine.letters.dead_letters import SCHEMA as LETTERS
from headrace.engine.letters.late_rows import SCHEMA as LATE_ROWS
from headrace.engine.letters.task_rows import locked_files
from headrace.engine.state.parquet_files import read_tables, rows_in

Status = Literal["open", "replayed", "discarded"]
By = Literal["reason", "stream", "flow", "day"]

_ROW = "_row"
_LETTER_INDEX = ("flow", "id", "generation", "stream", "reason", "met_at", "batch")
_LATE_INDEX = ("flow", "id", "generation", "stream", "event_time", "met_at")


@dataclass(frozen=True)
class DeadLetterStore:
    """Dead letters or late rows in Parquet files; each record once per flow, as it was met last."""

    files: tuple[StatePath, ...]
    ends: tuple[int, ...]
    """The number of rows up to the end of each file."""
    schema: pa.Schema
    index: pa.Table
    """One row per record; `_row` is its row number over all files."""

    @staticmethod
    def read(folder: StatePath, flow: str | None, schema: pa.Schema, columns: Sequence[str]) -> DeadLetterStore:
        """The records in a folder, of one flow or all.

        A caller of `fetch` must hold `locked_files` from before this call until the last fetch.
        """
        with locked_files(folder, flow) as files:
            if not files:
                empty = pa.schema([schema.field(name) for name in columns]).empty_table()
                return DeadLetterStore((), (), schema, empty.append_column(_ROW, pa.array([], pa.int64())))
            table = read_tables(files, schema, columns)
            ends = np.cumsum([rows_in(file) for file in files])
        table = table.append_column(_ROW, pa.array(np.arange(table.num_rows)))
        return DeadLetterStore(tuple(files), tuple(ends), schema, _as_met_last(table))

    def fetch(self, chosen: pa.Table, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Columns (by default all) of the chosen rows of the index, file by file, in the order of `_row`."""
        rows = np.sort(chosen[_ROW].to_numpy())
        start = 0
        for file, end in zip(self.files, self.ends, strict=True):
            in_file = rows[np.searchsorted(rows, start) : np.searchsorted(rows, end)] - start
            if len(in_file):
                yield read_tables([file], self.schema, columns).take(pa.array(in_file))
            start = end

    def newest(self, chosen: pa.Table, limit: int | None) -> list[dict[str, Any]]:
        """The newest of the chosen records, newest first, with all columns but the bytes."""
        order = [("met_at", "descending"), (_ROW, "descending")]
        top = chosen.sort_by(order)
        top = top if limit is None else top.slice(0, limit)
        parts = list(self.fetch(top, [name for name in self.schema.names if name != "value"]))
        if not parts:
            return []
        rows = pa.concat_tables(parts).append_column(_ROW, pa.array(np.sort(top[_ROW].to_numpy())))
        rows = rows.sort_by(order)
        if "status" in top.column_names:
            rows = rows.append_column("status", top["status"])
        return list(rows.drop_columns([_ROW]).to_pylist())


def _as_met_last(table: pa.Table) -> pa.Table:
    """One row per flow and id: a batch that ran again, or a later generation, may have met a record again."""
    keys = table.group_by(["flow", "id"]).aggregate([("met_at", "max")])
    if keys.num_rows == table.num_rows:
        return table
    ordered = table.sort_by([("met_at", "ascending"), (_ROW, "ascending")])
    last = ordered.group_by(["flow", "id"], use_threads=False).aggregate([(_ROW, "last")])
    return table.take(pa.array(np.sort(last[f"{_ROW}_last"].to_numpy())))


@dataclass(frozen=True)
class DeadLetterFilter:
    """A condition on dead letters or late rows. None accepts any value."""

    flow: str | None = None
    stream: str | None = None
    reason: str | None = None
    since: datetime | None = None
    status: Status | None = "open"

    def of(self, index: pa.Table) -> pa.Table:
        """The rows of an index that satisfy the condition."""
        for name in ("flow", "stream", "reason", "status"):
            value = getattr(self, name)
            if value is not None and name in index.column_names:
                index = index.filter(pc.equal(index[name], value))
        if self.since is not None:
            index = index.filter(pc.greater_equal(index["met_at"], pa.scalar(self.since, TIMESTAMP)))
        return index


@dataclass(frozen=True)
class DeadLetterIndex:
    """The dead letters of a state folder, and their audit log."""

    folder: StatePath

    @property
    def history(self) -> AuditLog:
        return AuditLog(self.folder)

    def locked(self, flow: str | None = None) -> AbstractContextManager[object]:
        """Must be held from before `read` until the last fetch from its result."""
        return locked_files(self.folder, flow)

    def read_without_status(self, flow: str | None = None) -> DeadLetterStore:
        return DeadLetterStore.read(self.folder, flow, LETTERS, _LETTER_INDEX)

    def read(self, flow: str | None = None) -> DeadLetterStore:
        store = self.read_without_status(flow)
        index = store.index
        closed, marks = self.history.closed()
        if not len(closed):
            all_open = pa.repeat(pa.scalar("open"), index.num_rows)
            return replace(store, index=index.append_column("status", all_open))
        place = pc.index_in(keys_of(index["flow"], index["generation"], index["id"]), value_set=closed)
        status = pc.fill_null(marks.take(place), "open")
        return replace(store, index=index.append_column("status", status))

    def find(self, store: DeadLetterStore, names: Sequence[str]) -> pa.Table:
        """The dead letters with these names: an id or its prefix, after `FLOW/` if two flows met the same record."""
        rows = {row[_ROW][0].as_py(): row for row in (self._find_one(store.index, name) for name in names)}
        return pa.concat_tables(rows.values()) if rows else store.index.slice(0, 0)

    def _find_one(self, index: pa.Table, name: str) -> pa.Table:
        flow, slash, prefix = name.rpartition("/")
        found = index.filter(pc.starts_with(index["id"], prefix))
        if slash:
            found = found.filter(pc.equal(found["flow"], flow))
        if found.num_rows == 1:
            return found
        if found.num_rows == 0 or not prefix:
            raise ProjectError(
                "unknown-letter",
                f"dead letter '{name}' does not exist",
                hint="ids are in: headrace dead-letters list --status all",
                exit_code=Exit.NOT_FOUND,
            )
        some = [f"{row['flow']}/{row['id']}" for row in found.slice(0, 5).to_pylist()]
        more = f" and {found.num_rows - len(some):,} more" if found.num_rows > len(some) else ""
        raise ProjectError(
            "ambiguous-letter",
            f"'{name}' matches {found.num_rows:,} dead letters",
            hint=f"write more characters: {', '.join(some)}{more}",
            exit_code=Exit.USAGE,
        )


def late_row_store(folder: StatePath, flow: str | None = None) -> DeadLetterStore:
    return DeadLetterStore.read(folder, flow, LATE_ROWS, _LATE_INDEX)


def count(index: pa.Table, by: By) -> list[dict[str, Any]]:
    """The count per value, largest first, and when the last record was met."""
    if by == "day":
        index = index.append_column("day", index["met_at"].cast(pa.date32(), safe=False))
    groups = index.group_by([by]).aggregate([([], "count_all"), ("met_at", "max")])
    order = [(by, "descending")] if by == "day" else [("count_all", "descending"), (by, "ascending")]
    rows = groups.sort_by(order).to_pylist()
    return [{by: str(row[by]), "count": row["count_all"], "newest": row["met_at_max"]} for row in rows]
