"""Upkeep of the logs of tables: many small changes become one base, and what no view needs any more goes."""

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
_MANY_FILES = 200
"""Files that a table is read from before it is worth a job to make one of them."""


@dataclass(frozen=True)
class _Removal:
    """What may go once the batches that were under way when a table was folded are done: they read the old files."""

    sequence: int
    batches: Mapping[str, int]
    """By generation, the newest batch that was begun then."""


@dataclass
class TableFolder:
    """Observer that folds the tables of views now and then.

    As far as the view goes that is furthest behind: a batch of it that runs again needs the table as it was then.
    """

    spark: SparkSession
    state: StateDir
    project: Project
    least: int = _MANY_FILES
    _due: float = field(default_factory=lambda: time.monotonic() + _EVERY_SECONDS)
    _waiting: dict[str, _Removal] = field(default_factory=dict)

    def batch_done(self, flow: FlowPlan, progress: Mapping[str, Any]) -> None:
        """Look at all tables when it is time."""
        if flow.tables() and time.monotonic() >= self._due:
            self._due = time.monotonic() + _EVERY_SECONDS
            self.look()

    def close(self) -> None:
        """Nothing is left open."""

    def look(self) -> list[str]:
        """Remove what nobody reads any more, and fold tables that are in many files; the names of these."""
        # also flows that do not run now count: they will go on from where they are
        plan = make_plan(self.project)
        folded: list[str] = []
        for group, shapes in _groups(plan).items():
            log, views = table_log(self.project.context, group), list(_generations(plan, self.state, group))
            self._remove(log, group, views)
            reached = min((_reached(one, group) for one in views), default=0)
            if not reached or group in self._waiting:
                continue
            if any(len(log.state(name, reached)) >= self.least for name in shapes):
                begun = {one.id: planned.batch_id for one in views if (planned := one.checkpoint.planned()) is not None}
                # all of them: commits are kept as long as one table is told by them
                for name, shape in shapes.items():
                    _fold(self.spark, log, name, shape, reached)
                self._waiting[group] = _Removal(reached, begun)
                folded += shapes
        return folded

    def _remove(self, log: TableLog, group: str, views: Sequence[Generation]) -> None:
        waiting = self._waiting.get(group)
        if waiting is not None and all(_done(one) >= waiting.batches.get(one.id, -1) for one in views):
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
    found: dict[str, dict[str, TableShape]] = {}
    for flow in plan.flows:
        for one in flow.tables():
            if one.shape is not None:
                found.setdefault(one.spec.source.group, {})[one.name] = one.shape
    return found


def _generations(plan: Plan, state: StateDir, group: str) -> Iterator[Generation]:
    """The generations of all views of a group's tables, also those that are built beside another."""
    for flow in plan.flows:
        if any(one.spec.source.group == group for one in flow.tables()):
            found = state.generations(flow.name)
            yield from (one for one in (found.current(), found.candidate()) if one is not None)


def _reached(generation: Generation, group: str) -> int:
    """How far a view has read the log; 0 before its first batch."""
    record = generation.checkpoint.committed()
    return 0 if record is None else int(record.ends[0].get(group, 0))


def _done(generation: Generation) -> int:
    record = generation.checkpoint.committed()
    return -1 if record is None else record.batch_id
