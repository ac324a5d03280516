"""The table logs that a view or report reads: their ends, and the files with the changes between two positions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError
from headrace.core.files.state_files import StatePath
from headrace.core.positions import Position, Positions, Reached, Split
from headrace.log.tables import TableLog, TableSegment, table_log
from headrace.log.tablestatus import read_group, tables_folder
from headrace.plan.model import FlowPlan, StandingInput

Reach = Mapping[str, int]
"""The commit up to which each log was read, by table group; 0 is before the first."""


@dataclass(frozen=True)
class TableFiles:
    """The Parquet files of one table in one batch."""

    delta: tuple[StatePath, ...]
    old: tuple[StatePath, ...]
    rows: int
    """Weighted rows in `delta`."""
    table_rows: int
    """The approximate number of rows of the table."""


@dataclass(frozen=True)
class FlowTables:
    """The tables of one view or report, by table group. Pickled to the process that plans offsets."""

    context: Context
    groups: Mapping[str, tuple[str, ...]]
    _logs: dict[str, TableLog] = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def of(flow: FlowPlan, context: Context) -> FlowTables:
        groups: dict[str, tuple[str, ...]] = {}
        standing = [source for source in flow.inputs if isinstance(source, StandingInput)]
        specs = {table.name: table.spec for table in flow.tables()}
        specs |= {source.name: source.table for source in standing if source.table is not None}
        for name, spec in specs.items():
            groups[spec.source.group] = (*groups.get(spec.source.group, ()), name)
        return FlowTables(context, groups)

    def start(self) -> dict[str, int]:
        """Before the first commit of every log."""
        return dict.fromkeys(self.groups, 0)

    def ends(self) -> dict[str, int]:
        """The newest commit of every log."""
        return {group: self._log(group).end() for group in self.groups}

    def next(self, start: Reach, most: int, last: Reach | None = None) -> dict[str, int]:
        """The end of the batch after `start`: about `most` changes later, and not after `last`.

        The first batch reads the whole contents of each table, so it waits until all tables are captured completely.
        """
        if not any(start.values()):
            return (dict(last) if last is not None else self.ends()) if self.complete() else dict(start)
        return {group: self._up_to(group, start.get(group, 0), most, last) for group in self.groups}

    def complete(self) -> bool:
        """Whether all tables are captured completely."""
        return all(set(tables) <= self._log(group).complete() for group, tables in self.groups.items())

    def standing(self, table: str, at: Reach) -> list[StatePath]:
        """The files with the contents of a table at these commits."""
        group = next(group for group, tables in self.groups.items() if table in tables)
        return list(self._log(group).state(table, at[group]))

    def _up_to(self, group: str, start: int, most: int, last: Reach | None) -> int:
        log, rows, reached = self._log(group), 0, start
        bound = log.end() if last is None else last[group]
        while reached < bound and rows < most:
            for segment in log.after(reached, 64):
                if segment.sequence > bound or rows >= most:
                    return reached
                rows += sum(part.rows for table in self.groups[group] for part in segment.parts.get(table, ()))
                reached = segment.sequence
        return reached

    def files(self, table: str, start: Reach, end: Reach) -> TableFiles:
        """The changes of a batch in a table, and the contents of the table before it."""
        group = next(group for group, tables in self.groups.items() if table in tables)
        log, before, after = self._log(group), start.get(group, 0), end[group]
        count = log.counts().get(table, 0)
        if before == 0:
            return TableFiles(tuple(log.state(table, after)), (), count, count)
        parts = [part for segment in _between(log, before, after) for part in segment.parts.get(table, ())]
        files = tuple(log.file(part) for part in parts)
        return TableFiles(files, tuple(log.state(table, before)), sum(part.rows for part in parts), count)

    def _log(self, group: str) -> TableLog:
        if group not in self._logs:
            self._logs[group] = table_log(self.context, group)
        return self._logs[group]


def _between(log: TableLog, start: int, end: int) -> Iterator[TableSegment]:
    """The segments after commit `start` up to and including commit `end`."""
    while start < end:
        for segment in log.after(start, min(64, end - start)):
            start = segment.sequence
            yield segment


def all_captured(flow: FlowPlan, context: Context) -> bool:
    """Whether the capture has caught up with the sources of a flow's tables.

    Raises ProjectError if the capture has failed.
    """
    statuses = [read_group(tables_folder(context), group) for group in FlowTables.of(flow, context).groups]
    for status in statuses:
        reason = status["reason"] if status is not None and status["live"] else None
        if reason is not None:
            raise ProjectError(
                "tables-not-followed",
                f"the tables of flow '{flow.name}' are not being captured: {reason['text']} [{reason['code']}]",
                hint=reason["hint"],
                exit_code=Exit.TRANSIENT if reason["transient"] else Exit.FAILED,
            )
    return all(status is not None and status["live"] and status["caught_up"] for status in statuses)


class TablePositions(Positions):
    """The position of a flow in the log of a table: a commit of its table group."""

    comparable = True

    def __init__(self, table: str, group: str, context: Context) -> None:
        super().__init__(f"table {table}")
        self._table = table
        self._group = group
        self._context = context

    def of_checkpoint(self, end: Any) -> Position | None:
        """The offset of the feed has a commit for each table group."""
        commit = end.get(self._group) if isinstance(end, dict) else None
        return {self._table: {"0": commit}} if isinstance(commit, int) else None

    def reached(self, end: Any) -> Reached | None:
        return {self._group: (end[self._group],)} if self.of_checkpoint(end) is not None else None

    def measure(self, position: Position | None) -> list[Split]:
        """One split, which counts commits instead of records."""
        log = table_log(self._context, self._group)
        at = None if position is None else position[self._table]["0"]
        end = log.end()
        unread = [] if at is None or at >= end else log.after(at, 1)
        lag_s = None if at is None else max(0.0, time.time() - unread[0].committed.timestamp()) if unread else 0.0
        return [Split(self._table, 0, 0, end, at, lag_s, counts_records=False)]
