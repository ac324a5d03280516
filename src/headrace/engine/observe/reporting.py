"""Everything that reports on running flows: status file, HTTP server, metrics, consumer groups, position log."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType

from headrace.engine.observe.housekeeping import Housekeeper
from headrace.engine.observe.http import StatusServer
from headrace.engine.observe.metrics import Metrics
from headrace.engine.observe.probes import ClosedLetterCounter, FileCounter, LagMeter
from headrace.engine.observe.status import EngineStatus
from headrace.engine.observe.table_compaction import TableCompactor
from headrace.engine.positions.consumer_groups import GroupCommitter
from headrace.engine.positions.positions import PositionLog
from headrace.engine.positions.release_positions import PositionReleaser
from headrace.engine.state.state import StateDir
from headrace.engine.state.status_file import write_status
from headrace.engine.supervise.background import PeriodicTask
from headrace.engine.supervise.runner import FlowRun, Runner
from headrace.log.tablestatus import read_groups, tables_folder
from headrace.project.loader import Project

_STATUS_SECONDS, _MEASURE_SECONDS = 1.0, 5.0


class Reporting:
    """Reports on the flows of a runner while the `with` block runs. Adds its observers to the runner."""

    def __init__(self, project: Project, state: StateDir, runner: Runner, *, http: bool = True) -> None:
        self._project, self._state, self._runner, self._http = project, state, runner, http
        notes, name = runner.notes, project.spec.project
        self._lags = LagMeter(name, project.context, state, runner.runs, notes)
        letters = FileCounter(state.dead_letters, "reason")
        closed, late = ClosedLetterCounter(state.dead_letters), FileCounter(state.late)
        self.status = EngineStatus(
            name, os.getpid(), runner.runs, notes, self._lags, letters, closed, late, redact=project.secrets.redact
        )
        if project.spec.tables:
            self.status.tables = lambda: read_groups(tables_folder(project.context))
        if runner.schemas is not None:
            self.status.schemas = runner.schemas.counts
        self._metrics = Metrics(self.status)
        groups = GroupCommitter(name, project.context, state)
        runner.observers = [*runner.observers, self._metrics, PositionLog(state), groups, Housekeeper(state)]
        if project.spec.tables:
            runner.observers = [*runner.observers, TableCompactor(runner.starter.spark, state, project)]
        if PositionReleaser.is_needed(project):
            runner.observers = [*runner.observers, PositionReleaser(project, state)]
        self._states: list[str] = []

    def __enter__(self) -> Reporting:
        self.server = StatusServer(self._project.spec.http, self.status, self._metrics) if self._http else None
        self.status.http = self.server.address if self.server else None
        notes = self._runner.notes
        self._tasks = [
            PeriodicTask("status file", _STATUS_SECONDS, self._write, notes),
            PeriodicTask("lag", _MEASURE_SECONDS, self._lags.measure, notes),
            PeriodicTask("dead letters", _MEASURE_SECONDS, self.status.letters.measure, notes),
            PeriodicTask("closed dead letters", _MEASURE_SECONDS, self.status.closed.measure, notes),
            PeriodicTask("late rows", _MEASURE_SECONDS, self.status.late.measure, notes),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.close()
        self._lags.close()
        self.status.ended = True
        self.status.http = None
        try:
            self.status.letters.measure()
            self.status.closed.measure()
            self.status.late.measure()
            self._write()
        except OSError as failure:
            self._runner.notes.add("status file", str(failure))
        if self.server is not None:
            self.server.close()

    def changed(self, runs: Sequence[FlowRun]) -> None:
        """Write the status file at once if the state of a flow has changed."""
        states = [f"{run.state} {run.reason.code if run.reason else ''} {run.stop_order}" for run in runs]
        if states != self._states:
            self._states = states
            self._tasks[0].run_now()

    def _write(self) -> None:
        write_status(self._state, self.status.document())
