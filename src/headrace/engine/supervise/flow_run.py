"""One flow while it runs: its query, its state and the reason for that state."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.core.errors import ProjectError
from headrace.core.tallies.tally import ENGINE
from headrace.engine.spark.progress import FlowCounters, new_batches
from headrace.engine.state.orders import FlowOrder
from headrace.engine.state.status_file import State
from headrace.engine.supervise.observers import Observer
from headrace.plan.model import FlowPlan

if TYPE_CHECKING:
    from concurrent.futures import Future

    from pyspark.sql.streaming.query import StreamingQuery

    from headrace.engine.flows.flow import FlowStarter
    from headrace.engine.supervise.candidate_switch import CandidateSwitch


@dataclass(frozen=True)
class Reason:
    """Why a flow is degraded."""

    code: str
    text: str
    since: datetime


@dataclass
class PendingRestart:
    """A failure after which the flow is started again; kept until the flow works."""

    error: ProjectError
    is_external: bool
    """The cause is outside the flow, so the restart does not use the restart budget."""
    attempts: int = 0
    not_before: float = 0.0
    """When the next attempt is due, on the monotonic clock."""
    was_unavailable: bool = False
    """A health check since the failure found a dependency unavailable; once it is back, the flow starts at once."""


@dataclass
class FlowRun:
    """One flow while it runs, and what it has done."""

    plan: FlowPlan
    query: StreamingQuery | None = None
    error: ProjectError | None = None
    """The final failure."""
    state: State = "starting"
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    reason: Reason | None = None
    note: Reason | None = None
    """A problem to look at although the flow runs."""
    history: ProjectError | None = None
    """Progress in the history that the flow reads first; None when all of it has been read."""
    new_plan: FlowPlan | None = None
    """The plan to continue with after the running batch."""
    stop_task: Future[None] | None = None
    """The background work that stops the query after its running batch."""
    stop_order: FlowOrder | None = None
    """The order to stop the flow, until it is ordered to run again."""
    last_error: ProjectError | None = None
    """The last failure from which the flow recovered or may recover."""
    restarts: int = 0
    has_run: bool = False
    generation: str | None = None
    caught_up: bool | None = None
    pending_restart: PendingRestart | None = None
    health_check_due: float = 0.0
    health_check: Future[ProjectError | None] | None = None
    """A check of everything the flow depends on, in the background."""
    counters: FlowCounters = field(init=False)
    busy_since: float | None = None
    """Since when Spark has worked on one trigger without progress, on the monotonic clock."""
    starter: FlowStarter | None = None
    """The starter of this flow, if it differs from the runner's."""
    switch: CandidateSwitch | None = None
    """The candidate generation of this flow and the switch to it."""
    is_candidate: bool = False
    schedule: Mapping[str, Any] | None = None
    """Last and next run of a flow with a schedule."""
    observer: Observer | None = None
    """Notified of batches instead of the runner's observers."""
    _last_batch: int = -1

    def __post_init__(self) -> None:
        self.counters = FlowCounters.of(self.plan)

    @property
    def name(self) -> str:
        """The name of the flow, marked if this is its candidate."""
        return f"{self.plan.name} (candidate)" if self.is_candidate else self.plan.name

    def switch_to(self, plan: FlowPlan) -> None:
        """Continue as the former candidate generation, which is the current one now."""
        self.plan, self.starter, self.switch, self.generation = plan, None, None, None
        self.query = self.pending_restart = self.health_check = self.caught_up = self.busy_since = None
        self.counters = FlowCounters.of(plan)
        self.set_state("starting")

    @property
    def done(self) -> bool:
        """Whether the flow has ended, with or without a failure."""
        return self.state in ("stopped", "failed")

    @property
    def rows_in(self) -> int:
        """Rows read since the engine started."""
        return self.counters.rows_in

    @property
    def batches(self) -> int:
        """Batches done since the engine started."""
        return self.counters.batches

    def set_state(self, state: State) -> None:
        if state != self.state:
            self.state, self.since = state, datetime.now(UTC)
        if state != "degraded":
            self.reason = None

    def degrade(self, error: ProjectError) -> None:
        """Enter the state `degraded`: the flow resumes by itself when the cause is gone."""
        self.last_error = error
        self.set_state("degraded")
        if self.reason is None or self.reason.code != error.code:
            self.reason = Reason(error.code, error.message, datetime.now(UTC))
        else:
            self.reason = Reason(error.code, error.message, self.reason.since)

    def fail(self, error: ProjectError) -> None:
        """Enter the state `failed`, without a restart."""
        self.error = self.last_error = error
        self.pending_restart = None
        self.set_state("failed")

    def set_note(self, error: ProjectError | None) -> None:
        if error is None:
            self.note = None
        elif self.note is None or self.note.text != error.message:
            self.note = Reason(error.code, error.message, datetime.now(UTC))

    def mark_running(self) -> None:
        """The flow has made progress, or its inputs have answered."""
        self.pending_restart = None
        self.has_run = True
        self.set_state("running")

    def resume_after(self, batch: int) -> None:
        """Count from the batch after this one: a query that is stopped may report a batch that it never ran."""
        self._last_batch = batch

    def take_reports(self) -> list[Mapping[str, Any]]:
        """Count the batches that Spark has reported since the last call, and return their reports."""
        if self.query is None:
            return []
        reports = [self._completed(report) for report in new_batches(self.query, self._last_batch)]
        for report in reports:
            self._last_batch = report["batchId"]
            self.counters.take(report)
            if report["numInputRows"]:
                self.caught_up = False
        return list(reports)

    def _completed(self, report: dict[str, Any]) -> Mapping[str, Any]:
        """Add what Spark does not see: the rows of a view's batch, the size of its state, the counts of a sink."""
        return {**report, **ENGINE.take_batch(self.plan.name, report["batchId"])}

    def take_status(self) -> bool:
        """Read Spark's status. True when it waits for data or the next trigger, so the inputs have answered."""
        assert self.query is not None
        status = self.query.status
        waits = not status["isTriggerActive"] and status["message"].startswith("Waiting")
        if waits:
            self.busy_since = None
            self.caught_up = not status["isDataAvailable"]
        elif self.busy_since is None:
            self.busy_since = time.monotonic()
        return waits
