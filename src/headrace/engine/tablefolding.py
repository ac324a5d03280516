"""Upkeep of the logs of tables: many small changes become one base, and what no view needs any more goes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.core.statefiles import copy_file, spark_path
from headrace.core.tables import TableShape
from headrace.engine.state import StateDir
from headrace.engine.tablerows import consolidated, weighted_rows
from headrace.log.tables import TableLog, table_log
from headrace.plan.model import FlowPlan, Plan
from headrace.plan.planner import make_plan
from headrace.project.loader import Project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EVERY_SECONDS = 30.0
_MANY_FILES = 200
"""Files that a table is read from before it is worth a job to make one of them."""


@dataclass
class TableFolder:
    """Observer that folds the tables of views now and then."""

    spark: SparkSession
    state: StateDir
    project: Project
    _due: float = field(default_factory=lambda: time.monotonic() + _EVERY_SECONDS)

    def batch_done(self, flow: FlowPlan, progress: Mapping[str, Any]) -> None:
        """Look at all tables when it is time."""
        if flow.tables() and time.monotonic() >= self._due:
            self._due = time.monotonic() + _EVERY_SECONDS
            # also those that do not run now count: they will go on from where they are
            fold_tables(self.spark, make_plan(self.project), self.state, self.project)

    def close(self) -> None:
        """Nothing is left open."""


def fold_tables(
    spark: SparkSession, plan: Plan, state: StateDir, project: Project, least: int = _MANY_FILES
) -> list[str]:
    """Fold the tables that are in many files, and remove what was before. Gives the names of those that were folded.

    As far as the view goes that is furthest behind: a batch of it that runs again needs the table as it was then.
    """
    folded: list[str] = []
    for group, shapes in _groups(plan).items():
        log = table_log(project.context, group)
        reached = min(_reached(plan, state, group), default=0)
        if not reached or not any(len(log.state(name, reached)) >= least for name in shapes):
            continue
        # all of them: commits are kept as long as one table is told by them
        for name, shape in shapes.items():
            _fold(spark, log, name, shape, reached)
        log.retain(reached)
        folded += shapes
    return folded


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


def _reached(plan: Plan, state: StateDir, group: str) -> Iterator[int]:
    """How far each view of a group's tables is, also those that are built beside another; 0 before the first batch."""
    for flow in plan.flows:
        if not any(one.spec.source.group == group for one in flow.tables()):
            continue
        generations = state.generations(flow.name)
        for generation in (generations.current(), generations.candidate()):
            if generation is not None:
                record = generation.checkpoint.committed()
                yield record.ends[0].get(group, 0) if record is not None else 0
