"""Dead letters and late rows as people look at them: which there are, what became of each. Needs no Spark.

What is looked through is an index without the records' bytes, in Arrow: a million letters take about half a GB at the
peak. Bytes and details are fetched for those that are shown, or file by file.
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
from headrace.engine.letters.dead_letters import kept_files
from headrace.engine.letters.late_rows import SCHEMA as LATE_ROWS
from headrace.engine.state.parquet_files import read_tables, rows_in

Status = Literal["open", "replayed", "discarded"]
By = Literal["reason", "stream", "flow", "day"]

_ROW = "_row"
_LETTER_INDEX = ("flow", "id", "generation", "stream", "reason", "met_at", "batch")
_LATE_INDEX = ("flow", "id", "generation", "stream", "event_time", "met_at")


@dataclass(frozen=True)
class DeadLetterStore:
    """Records that flows have put aside, in Parquet files; each once per flow, as it was met last."""

    files: tuple[StatePath, ...]
    ends: tuple[int, ...]
    """How many rows there are up to the end of each file."""
    schema: pa.Schema
    index: pa.Table
    """One row per record, with its place in the files as `_row`."""

    @staticmethod
    def read(folder: StatePath, flow: str | None, schema: pa.Schema, columns: Sequence[str]) -> DeadLetterStore:
        """What is in a folder, or in the part of it that belongs to a flow.

        Whoever fetches from it later holds `kept_files` from before this call until then.
        """
        with kept_files(folder, flow) as files:
            if not files:
                empty = pa.schema([schema.field(name) for name in columns]).empty_table()
                return DeadLetterStore((), (), schema, empty.append_column(_ROW, pa.array([], pa.int64())))
            table = read_tables(files, schema, columns)
            ends = np.cumsum([rows_in(file) for file in files])
        table = table.append_column(_ROW, pa.array(np.arange(table.num_rows)))
        return DeadLetterStore(tuple(files), tuple(ends), schema, _as_met_last(table))

    def fetch(self, chosen: pa.Table, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """These columns (or all) of the chosen rows of the index, file by file, in the order of `_row`."""
        wanted = np.sort(chosen[_ROW].to_numpy())
        start = 0
        for file, end in zip(self.files, self.ends, strict=True):
            here = wanted[np.searchsorted(wanted, start) : np.searchsorted(wanted, end)] - start
            if len(here):
                yield read_tables([file], self.schema, columns).take(pa.array(here))
            start = end

    def newest(self, chosen: pa.Table, limit: int | None) -> list[dict[str, Any]]:
        """The chosen records that were met last, whole but for their bytes, newest first."""
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
    """One row per flow and id. A batch that ran again, or a later generation, may have met a record again."""
    keys = table.group_by(["flow", "id"]).aggregate([("met_at", "max")])
    if keys.num_rows == table.num_rows:
        return table
    ordered = table.sort_by([("met_at", "ascending"), (_ROW, "ascending")])
    last = ordered.group_by(["flow", "id"], use_threads=False).aggregate([(_ROW, "last")])
    return table.take(pa.array(np.sort(last[f"{_ROW}_last"].to_numpy())))


@dataclass(frozen=True)
class LetterFilter:
    """Which letters are meant; what is None does not matter."""

    flow: str | None = None
    stream: str | None = None
    reason: str | None = None
    since: datetime | None = None
    status: Status | None = "open"

    def of(self, index: pa.Table) -> pa.Table:
        """Those rows of an index."""
        for name in ("flow", "stream", "reason", "status"):
            value = getattr(self, name)
            if value is not None and name in index.column_names:
                index = index.filter(pc.equal(index[name], value))
        if self.since is not None:
            index = index.filter(pc.greater_equal(index["met_at"], pa.scalar(self.since, TIMESTAMP)))
        return index


@dataclass(frozen=True)
class LetterBook:
    """The dead letters of a state folder, and their history."""

    folder: StatePath

    @property
    def history(self) -> AuditLog:
        """What became of letters."""
        return AuditLog(self.folder)

    def reading(self, flow: str | None = None) -> AbstractContextManager[object]:
        """To be held from before a shelf is opened until the last letter is fetched from it."""
        return kept_files(self.folder, flow)

    def met(self, flow: str | None = None) -> DeadLetterStore:
        """All letters, or those of a flow, whatever became of them."""
        return DeadLetterStore.read(self.folder, flow, LETTERS, _LETTER_INDEX)

    def shelf(self, flow: str | None = None) -> DeadLetterStore:
        """All letters, or those of a flow, each with its status."""
        shelf = self.met(flow)
        index = shelf.index
        closed, marks = self.history.closed()
        if not len(closed):
            open_ = pa.repeat(pa.scalar("open"), index.num_rows)
            return replace(shelf, index=index.append_column("status", open_))
        place = pc.index_in(keys_of(index["flow"], index["generation"], index["id"]), value_set=closed)
        status = pc.fill_null(marks.take(place), "open")
        return replace(shelf, index=index.append_column("status", status))

    def find(self, shelf: DeadLetterStore, names: Sequence[str]) -> pa.Table:
        """The letters with these names: an id or its beginning, with `FLOW/` before it where two flows met a record."""
        rows = {row[_ROW][0].as_py(): row for row in (self._find_one(shelf.index, name) for name in names)}
        return pa.concat_tables(rows.values()) if rows else shelf.index.slice(0, 0)

    def _find_one(self, index: pa.Table, name: str) -> pa.Table:
        flow, slash, beginning = name.rpartition("/")
        found = index.filter(pc.starts_with(index["id"], beginning))
        if slash:
            found = found.filter(pc.equal(found["flow"], flow))
        if found.num_rows == 1:
            return found
        if found.num_rows == 0 or not beginning:
            raise ProjectError(
                "unknown-letter",
                f"there is no dead letter '{name}'",
                hint="ids are in: headrace dead-letters list --status all",
                exit_code=Exit.NOT_FOUND,
            )
        some = [f"{row['flow']}/{row['id']}" for row in found.slice(0, 5).to_pylist()]
        more = f" and {found.num_rows - len(some):,} more" if found.num_rows > len(some) else ""
        raise ProjectError(
            "ambiguous-letter",
            f"'{name}' may be any of {found.num_rows:,} dead letters",
            hint=f"write more of it: {', '.join(some)}{more}",
            exit_code=Exit.USAGE,
        )


def late_rows(folder: StatePath, flow: str | None = None) -> DeadLetterStore:
    """The rows that came too late for a flow's windows."""
    return DeadLetterStore.read(folder, flow, LATE_ROWS, _LATE_INDEX)


def count(index: pa.Table, by: By) -> list[dict[str, Any]]:
    """How many there are of each, the most first, and when the last was met."""
    if by == "day":
        index = index.append_column("day", index["met_at"].cast(pa.date32(), safe=False))
    groups = index.group_by([by]).aggregate([([], "count_all"), ("met_at", "max")])
    order = [(by, "descending")] if by == "day" else [("count_all", "descending"), (by, "ascending")]
    rows = groups.sort_by(order).to_pylist()
    return [{by: str(row[by]), "count": row["count_all"], "newest": row["met_at_max"]} for row in rows]
