"""One flow while it runs: its state, why, and since when."""

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
    from headrace.engine.supervise.candidate_switch import Building


@dataclass(frozen=True)
class Reason:
    """Why a flow is degraded."""

    code: str
    text: str
    since: datetime


@dataclass
class Trouble:
    """What keeps a flow from running, from its failure until it works again."""

    error: ProjectError
    outside: bool
    attempts: int = 0
    not_before: float = 0.0
    """When the next attempt is due, on the monotonic clock."""
    was_away: bool = False
    """Whether a look since the failure found something missing; when it is back, there is no need to wait longer."""


@dataclass
class FlowRun:
    """One flow while it runs, and what it has done."""

    plan: FlowPlan
    query: StreamingQuery | None = None
    error: ProjectError | None = None
    """What it failed of, for good."""
    state: State = "starting"
    since: datetime = field(default_factory=lambda: datetime.now(UTC))
    reason: Reason | None = None
    note: Reason | None = None
    """What somebody should look at although the flow runs."""
    history: ProjectError | None = None
    """How far it is in the history that it reads first; None when there is none left."""
    renewal: FlowPlan | None = None
    """The plan that it goes on with after its running batch."""
    leaving: Future[None] | None = None
    """The query's stop after its running batch, by a side thread."""
    stop: FlowOrder | None = None
    """Who wants it to be stopped, until somebody wants it to run again."""
    last_error: ProjectError | None = None
    """The last failure that it recovered, or may yet recover, from."""
    restarts: int = 0
    has_run: bool = False
    generation: str | None = None
    caught_up: bool | None = None
    trouble: Trouble | None = None
    look_due: float = 0.0
    look: Future[ProjectError | None] | None = None
    """A look at what the flow depends on, taken by a side thread."""
    numbers: FlowCounters = field(init=False)
    busy_since: float | None = None
    """Since when Spark has been at one trigger without getting on, on the monotonic clock."""
    starter: FlowStarter | None = None
    """What starts it, if that is not the runner's own."""
    building: Building | None = None
    """The generation that is built beside it."""
    is_candidate: bool = False
    schedule: Mapping[str, Any] | None = None
    """When it last ran and runs next, for one that runs by a schedule."""
    log: Observer | None = None
    """Who is told of its batches instead of the runner's observers."""
    _seen_batch: int = -1

    def __post_init__(self) -> None:
        self.numbers = FlowCounters.of(self.plan)

    @property
    def name(self) -> str:
        """The flow, and whether it is the candidate of it."""
        return f"{self.plan.name} (candidate)" if self.is_candidate else self.plan.name

    def take_over(self, plan: FlowPlan) -> None:
        """Go on as the generation that was built beside it, which is the current one now."""
        self.plan, self.starter, self.building, self.generation = plan, None, None, None
        self.query = self.trouble = self.look = self.caught_up = self.busy_since = None
        self.numbers = FlowCounters.of(plan)
        self.become("starting")

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self.state in ("stopped", "failed")

    @property
    def rows_in(self) -> int:
        """Rows read since the engine started."""
        return self.numbers.rows_in

    @property
    def batches(self) -> int:
        """Batches done since the engine started."""
        return self.numbers.batches

    def become(self, state: State) -> None:
        """Be in this state from now on, unless it already is."""
        if state != self.state:
            self.state, self.since = state, datetime.now(UTC)
        if state != "degraded":
            self.reason = None

    def degrade(self, error: ProjectError) -> None:
        """Say what is missing; the flow will go on by itself when it is back."""
        self.last_error = error
        self.become("degraded")
        if self.reason is None or self.reason.code != error.code:
            self.reason = Reason(error.code, error.message, datetime.now(UTC))
        else:
            self.reason = Reason(error.code, error.message, self.reason.since)

    def fail(self, error: ProjectError) -> None:
        """End for good."""
        self.error = self.last_error = error
        self.trouble = None
        self.become("failed")

    def remark(self, error: ProjectError | None) -> None:
        """Say what is not as it should be, or that all is well again."""
        if error is None:
            self.note = None
        elif self.note is None or self.note.text != error.message:
            self.note = Reason(error.code, error.message, datetime.now(UTC))

    def works(self) -> None:
        """It has made progress, or its inputs have answered."""
        self.trouble = None
        self.has_run = True
        self.become("running")

    def go_on_after(self, batch: int) -> None:
        """Count again from the batch after this one: a query that is stopped may report on a batch it never ran."""
        self._seen_batch = batch

    def take_reports(self) -> list[Mapping[str, Any]]:
        """Take in what Spark reports since the last time: the batches that are new."""
        if self.query is None:
            return []
        reports = [self._counted(report) for report in new_batches(self.query, self._seen_batch)]
        for report in reports:
            self._seen_batch = report["batchId"]
            self.numbers.take(report)
            if report["numInputRows"]:
                self.caught_up = False
        return list(reports)

    def _counted(self, report: dict[str, Any]) -> Mapping[str, Any]:
        """A report with what Spark does not see: the rows of a view's batch, what it keeps, what a sink counts."""
        return {**report, **ENGINE.take_batch(self.plan.name, report["batchId"])}

    def take_status(self) -> bool:
        """Look at what Spark is doing; whether it waits for data or the next trigger, so its inputs have answered."""
        assert self.query is not None
        status = self.query.status
        waits = not status["isTriggerActive"] and status["message"].startswith("Waiting")
        if waits:
            self.busy_since = None
            self.caught_up = not status["isDataAvailable"]
        elif self.busy_since is None:
            self.busy_since = time.monotonic()
        return waits
