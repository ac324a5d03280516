"""Runs the flows of a plan together: start, watch, stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.core.errors import Exit, ProjectError
from headrace.engine.failures import from_query
from headrace.engine.flow import FlowStarter
from headrace.engine.lake import is_table
from headrace.plan.model import FlowPlan, LakeInput, Plan

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_SECONDS = 0.25
_STOP_SECONDS = 30.0


@dataclass
class FlowRun:
    """One flow while it runs, and what it has done."""

    plan: FlowPlan
    query: StreamingQuery | None = None
    error: ProjectError | None = None
    rows_in: int = 0
    batches: int = 0
    last: dict[str, Any] = field(default_factory=dict)
    _seen_batch: int = -1

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self.error is not None or (self.query is not None and not self.query.isActive)

    def look(self) -> None:
        """Take in what Spark reports since the last look."""
        if self.query is None:
            return
        for progress in self.query.recentProgress:
            if progress["batchId"] > self._seen_batch:
                self._seen_batch = progress["batchId"]
                self.batches += 1
                self.rows_in += progress["numInputRows"]
            self.last = _plain(progress)
        if not self.query.isActive and self.error is None and self.query.exception() is not None:
            self.error = from_query(self.plan, self.query.exception())


def _plain(progress: Any) -> dict[str, Any]:
    return {
        "batch": progress["batchId"],
        "rows": progress["numInputRows"],
        "rows_per_s": progress["processedRowsPerSecond"],
        "duration_ms": progress["durationMs"].get("triggerExecution"),
        "watermark": _watermark((progress["eventTime"] or {}).get("watermark")),
        "state_rows": sum(op["numRowsTotal"] for op in progress["stateOperators"]),
    }


def _watermark(given: str | None) -> str | None:
    """Spark says 1970 for a watermark that is not known yet."""
    return None if given is None or given.startswith("1970-01-01T00:00:00") else given


@dataclass
class Runner:
    """Supervises the flows of one plan in this process."""

    starter: FlowStarter
    plan: Plan
    stopping: threading.Event = field(default_factory=threading.Event)
    runs: list[FlowRun] = field(default_factory=list)

    def run(
        self, *, seconds: float | None = None, report: Callable[[Sequence[FlowRun]], None] = lambda _runs: None
    ) -> list[FlowRun]:
        """Run until all flows have ended, the time is over or `stopping` is set; then stop what still runs.

        A flow that fails does not touch the others; its error is in its FlowRun.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        self.runs = [FlowRun(flow) for flow in self.plan.flows]
        try:
            while not self.stopping.is_set():
                self._start_ready()
                for run in self.runs:
                    run.look()
                report(self.runs)
                if all(run.done for run in self.runs) or (deadline is not None and time.monotonic() >= deadline):
                    break
                self.stopping.wait(_POLL_SECONDS)
        finally:
            self._stop()
        return self.runs

    def _start_ready(self) -> None:
        for run in self.runs:
            if run.query is None and run.error is None:
                try:
                    if self._ready(run.plan):
                        run.query = self.starter.start(run.plan)
                except ProjectError as error:
                    run.error = error

    def _ready(self, flow: FlowPlan) -> bool:
        """A flow that reads another's lake table waits for it; until caught up, for its end."""
        for one in flow.inputs:
            if isinstance(one, LakeInput):
                upstream = next((run for run in self.runs if run.plan.name == one.name), None)
                if upstream is not None and self.starter.until_caught_up and not upstream.done:
                    return False
                if not is_table(one.path):
                    if upstream is None or upstream.done:
                        raise ProjectError(
                            "lake-missing",
                            f"flow '{flow.name}' reads the lake table of '{one.name}', which is not there",
                            hint=f"run '{one.name}' first",
                            exit_code=Exit.NOT_FOUND,
                        )
                    return False
        return True

    def _stop(self) -> None:
        """Let each running batch finish, up to a deadline, so that the next start has nothing to repeat."""
        deadline = time.monotonic() + _STOP_SECONDS
        running = [run for run in self.runs if run.query is not None and run.query.isActive]
        for run in running:
            assert run.query is not None
            # a real-time batch lasts for minutes, and its rows are written already
            patient = run.plan.spec.mode != "realtime"
            while patient and run.query.isActive and run.query.status["isTriggerActive"]:
                if time.monotonic() >= deadline:
                    break
                time.sleep(0.02)
            run.query.stop()
        for run in self.runs:
            run.look()
