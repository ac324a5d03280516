"""All that tells others about the flows while they run: the status file, metrics, consumer groups, positions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType

from headrace.engine.observe.housekeeping import Housekeeper
from headrace.engine.observe.http import StatusServer
from headrace.engine.observe.metrics import Metrics
from headrace.engine.observe.probes import ClosedLetterCounter, FileCounter, LagMeter
from headrace.engine.observe.status import EngineStatus
from headrace.engine.observe.table_folding import TableFolder
from headrace.engine.positions.consumer_groups import GroupCommitter
from headrace.engine.positions.positions import PositionLog
from headrace.engine.positions.release_positions import PositionReleaser
from headrace.engine.state.state import StateDir
from headrace.engine.state.status_file import write_status
from headrace.engine.supervise.background import PeriodicTask
from headrace.engine.supervise.runner import FlowRun, Runner
from headrace.log.tablestatus import read_groups, tables_folder
from headrace.project.loader import Project

_STATUS_SECONDS, _METER_SECONDS = 1.0, 5.0


class Reporting:
    """Tells about the flows of a runner from `with` until its end; adds its observers to the runner."""

    def __init__(self, project: Project, state: StateDir, runner: Runner, *, http: bool = True) -> None:
        self._project, self._state, self._runner, self._http = project, state, runner, http
        notes, name = runner.notes, project.spec.project
        self._lags = LagMeter(name, project.context, state, runner.runs, notes)
        letters = FileCounter(state.dead_letters, "reason")
        closed, late = ClosedLetterCounter(state.dead_letters), FileCounter(state.late)
        self.board = EngineStatus(
            name, os.getpid(), runner.runs, notes, self._lags, letters, closed, late, redact=project.secrets.redact
        )
        if project.spec.tables:
            self.board.tables = lambda: read_groups(tables_folder(project.context))
        if runner.schemas is not None:
            self.board.schemas = runner.schemas.counts
        self._metrics = Metrics(self.board)
        groups = GroupCommitter(name, project.context, state)
        runner.observers = [*runner.observers, self._metrics, PositionLog(state), groups, Housekeeper(state)]
        if project.spec.tables:
            runner.observers = [*runner.observers, TableFolder(runner.starter.spark, state, project)]
        if PositionReleaser.is_needed(project):
            runner.observers = [*runner.observers, PositionReleaser(project, state)]
        self._states: list[str] = []

    def __enter__(self) -> Reporting:
        self.server = StatusServer(self._project.spec.http, self.board, self._metrics) if self._http else None
        self.board.http = self.server.address if self.server else None
        notes = self._runner.notes
        self._work = [
            PeriodicTask("status file", _STATUS_SECONDS, self._write, notes),
            PeriodicTask("lag", _METER_SECONDS, self._lags.measure, notes),
            PeriodicTask("dead letters", _METER_SECONDS, self.board.letters.measure, notes),
            PeriodicTask("closed dead letters", _METER_SECONDS, self.board.closed.measure, notes),
            PeriodicTask("late rows", _METER_SECONDS, self.board.late.measure, notes),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for work in self._work:
            work.close()
        self._lags.close()
        self.board.ended = True
        self.board.http = None
        try:
            self.board.letters.measure()
            self.board.closed.measure()
            self.board.late.measure()
            self._write()
        except OSError as trouble:
            self._runner.notes.add("status file", str(trouble))
        if self.server is not None:
            self.server.close()

    def changed(self, runs: Sequence[FlowRun]) -> None:
        """Write the status at once when a flow is in another state."""
        states = [f"{run.state} {run.reason.code if run.reason else ''} {run.stop_order}" for run in runs]
        if states != self._states:
            self._states = states
            self._work[0].run_now()

    def _write(self) -> None:
        write_status(self._state, self.board.document())
