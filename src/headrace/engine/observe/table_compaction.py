"""Compacts table logs: many small change files become one base, and files that no view needs are deleted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.core.files.state_files import copy_file, spark_path
from headrace.core.tables import TableShape
from headrace.engine.state.generations import Generation
from headrace.engine.state.state import StateDir
from headrace.engine.tables.table_rows import consolidated, weighted_rows
from headrace.log.tables import TableLog, table_log
from headrace.plan.model import FlowPlan, Plan
from headrace.plan.planner import make_plan
from headrace.project.loader import Project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EVERY_SECONDS = 30.0
_MIN_FILES = 200
"""From this number of files on, a table is worth a job that compacts it."""


@dataclass(frozen=True)
class _Removal:
    """Old files that can be deleted after the batches that were running during the compaction: they read them."""

    sequence: int
    batches: Mapping[str, int]
    """By generation, the newest batch that was started at that time."""


@dataclass
class TableCompactor:
    """Observer that compacts the tables of views.

    Only up to the position of the view that is furthest behind: a batch of it that is repeated needs the table of that
    time.
    """

    spark: SparkSession
    state: StateDir
    project: Project
    min_files: int = _MIN_FILES
    _due: float = field(default_factory=lambda: time.monotonic() + _EVERY_SECONDS)
    _waiting: dict[str, _Removal] = field(default_factory=dict)

    def batch_done(self, flow: FlowPlan, progress: Mapping[str, Any]) -> None:
        if flow.tables() and time.monotonic() >= self._due:
            self._due = time.monotonic() + _EVERY_SECONDS
            self.compact()

    def close(self) -> None:
        """Nothing is open."""

    def compact(self) -> list[str]:
        """Delete files that are no longer read and compact tables with many files; returns the names of these."""
        # flows that do not run count too: they will resume from their positions
        plan = make_plan(self.project)
        compacted: list[str] = []
        for group, shapes in _groups(plan).items():
            log, views = table_log(self.project.context, group), list(_generations(plan, self.state, group))
            self._remove(log, group, views)
            reached = min((_reached(view, group) for view in views), default=0)
            if not reached or group in self._waiting:
                continue
            if any(len(log.state(name, reached)) >= self.min_files for name in shapes):
                planned = {view.id: view.checkpoint.planned() for view in views}
                started = {id: record.batch_id for id, record in planned.items() if record is not None}
                # all tables of the group: a commit is kept as long as one table needs it
                for name, shape in shapes.items():
                    _fold(self.spark, log, name, shape, reached)
                self._waiting[group] = _Removal(reached, started)
                compacted += shapes
        return compacted

    def _remove(self, log: TableLog, group: str, views: Sequence[Generation]) -> None:
        waiting = self._waiting.get(group)
        if waiting is not None and all(_committed(view) >= waiting.batches.get(view.id, -1) for view in views):
            log.retain(waiting.sequence)
            del self._waiting[group]


def _fold(spark: SparkSession, log: TableLog, table: str, shape: TableShape, sequence: int) -> None:
    files, folder = log.state(table, sequence), log.staging(table, sequence)
    if log.is_base(files):
        for file in files:
            copy_file(file, folder / file.name)
    else:
        rows = consolidated(weighted_rows(spark, shape, files))
        rows.coalesce(spark.sparkContext.defaultParallelism).write.parquet(spark_path(folder))
    log.fold(table, sequence, [file for file in folder.iterdir() if file.name.endswith(".parquet")])


def _groups(plan: Plan) -> dict[str, dict[str, TableShape]]:
    groups: dict[str, dict[str, TableShape]] = {}
    for flow in plan.flows:
        for table in flow.tables():
            if table.shape is not None:
                groups.setdefault(table.spec.source.group, {})[table.name] = table.shape
    return groups


def _generations(plan: Plan, state: StateDir, group: str) -> Iterator[Generation]:
    """The current and candidate generations of all views that read tables of a group."""
    for flow in plan.flows:
        if any(table.spec.source.group == group for table in flow.tables()):
            generations = state.generations(flow.name)
            yield from (each for each in (generations.current(), generations.candidate()) if each is not None)


def _reached(generation: Generation, group: str) -> int:
    """The sequence number up to which a view has read the log; 0 before its first batch."""
    record = generation.checkpoint.committed()
    return 0 if record is None else int(record.ends[0].get(group, 0))


def _committed(generation: Generation) -> int:
    record = generation.checkpoint.committed()
    return -1 if record is None else record.batch_id
