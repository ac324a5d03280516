"""The logs behind a view: how far they go, and which files hold what changed between two positions."""

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
"""By log, the commit up to which it was read; 0 is before the first."""


@dataclass(frozen=True)
class TableFiles:
    """The Parquet files of one table in one batch."""

    delta: tuple[StatePath, ...]
    old: tuple[StatePath, ...]
    rows: int
    """Weighted rows in `delta`."""
    table_rows: int
    """About how many rows the table has."""


@dataclass(frozen=True)
class FlowTables:
    """The tables of one view or report, by the groups they are read with. Pickled to whoever asks for offsets."""

    context: Context
    groups: Mapping[str, tuple[str, ...]]
    """The tables of each group."""
    _logs: dict[str, TableLog] = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def of(flow: FlowPlan, context: Context) -> FlowTables:
        """The tables that a view or a report reads."""
        groups: dict[str, tuple[str, ...]] = {}
        standing = [one for one in flow.inputs if isinstance(one, StandingInput)]
        specs = {one.name: one.spec for one in flow.tables()}
        specs |= {one.name: one.table for one in standing if one.table is not None}
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
        """Where the batch after `start` ends: some `most` changes further, and not after `last`.

        The first batch takes each table as it stands, so it waits until all of them have come whole.
        """
        if not any(start.values()):
            return (dict(last) if last is not None else self.ends()) if self.whole() else dict(start)
        return {group: self._up_to(group, start.get(group, 0), most, last) for group in self.groups}

    def whole(self) -> bool:
        """Whether all tables have come whole."""
        return all(set(tables) <= self._log(group).complete() for group, tables in self.groups.items())

    def standing(self, table: str, at: Reach) -> list[StatePath]:
        """The files that hold a table as it was at these commits."""
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
        """What a batch changes in a table, and what the table was before it."""
        group = next(group for group, tables in self.groups.items() if table in tables)
        log, before, after = self._log(group), start.get(group, 0), end[group]
        count = log.counts().get(table, 0)
        if before == 0:
            return TableFiles(tuple(log.state(table, after)), (), count, count)
        parts = [part for one in _between(log, before, after) for part in one.parts.get(table, ())]
        files = tuple(log.file(part) for part in parts)
        return TableFiles(files, tuple(log.state(table, before)), sum(part.rows for part in parts), count)

    def _log(self, group: str) -> TableLog:
        if group not in self._logs:
            self._logs[group] = table_log(self.context, group)
        return self._logs[group]


def _between(log: TableLog, start: int, end: int) -> Iterator[TableSegment]:
    """The segments after one commit, up to and including another."""
    while start < end:
        for one in log.after(start, min(64, end - start)):
            start = one.sequence
            yield one


def all_captured(flow: FlowPlan, context: Context) -> bool:
    """Whether the capture has taken in all that the sources of a view's tables had since it started.

    A ProjectError says why it cannot."""
    told = [read_group(tables_folder(context), group) for group in FlowTables.of(flow, context).groups]
    for said in told:
        reason = said["reason"] if said is not None and said["live"] else None
        if reason is not None:
            raise ProjectError(
                "tables-not-followed",
                f"the tables of flow '{flow.name}' are not followed: {reason['text']} [{reason['code']}]",
                hint=reason["hint"],
                exit_code=Exit.TRANSIENT if reason["transient"] else Exit.FAILED,
            )
    return all(said is not None and said["live"] and said["caught_up"] for said in told)


class TablePositions(Positions):
    """Where a view is in the log of a table: commits of its group. It begins with the table as it stands."""

    comparable = True

    def __init__(self, table: str, group: str, context: Context) -> None:
        super().__init__(f"table {table}")
        self._table = table
        self._group = group
        self._context = context

    def of_checkpoint(self, end: Any) -> Position | None:
        """The offset of the feed has a number for each group."""
        found = end.get(self._group) if isinstance(end, dict) else None
        return {self._table: {"0": found}} if isinstance(found, int) else None

    def reached(self, end: Any) -> Reached | None:
        """The commit."""
        return {self._group: (end[self._group],)} if self.of_checkpoint(end) is not None else None

    def measure(self, position: Position | None) -> list[Split]:
        """One split, which counts commits."""
        log = table_log(self._context, self._group)
        at = None if position is None else position[self._table]["0"]
        end = log.end()
        unread = [] if at is None or at >= end else log.after(at, 1)
        lag_s = None if at is None else max(0.0, time.time() - unread[0].committed.timestamp()) if unread else 0.0
        return [Split(self._table, 0, 0, end, at, lag_s, counts_records=False)]
