"""The supervisor: starts the flows of a plan, watches them, restarts them after failures and stops them.

`Runner.run` polls every flow a few times per second. What a poll does depends on the flow:

* it has a stop order or a new plan: its query is stopped after the running batch;
* it has no query: it is started when its inputs are ready, or restarted when its restart is due (`restarts`);
* its query is active: new batches are counted and reported; if it makes no progress, a health check runs in the
  background (`health`);
* its query has ended: it has caught up, or it has failed.

A flow with a candidate generation is polled by `candidate_switch`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.core.errors import Exit, ProjectError
from headrace.core.files.objects import StoreError
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.inputs.backfill import finish, progress
from headrace.engine.spark.failures import from_query
from headrace.engine.spark.session import is_lost
from headrace.engine.state.orders import Orders
from headrace.engine.state.schedules import Timetable
from headrace.engine.supervise.background import Notes, ObserverThread, run_in_background
from headrace.engine.supervise.candidate_switch import CandidateSwitch, create_runs
from headrace.engine.supervise.chains import FeedChain
from headrace.engine.supervise.flow_run import FlowRun, PendingRestart
from headrace.engine.supervise.health import Health
from headrace.engine.supervise.observers import Observer
from headrace.engine.supervise.publish_caught_up import publish_if_caught_up
from headrace.engine.supervise.readiness import inputs_ready
from headrace.engine.supervise.restarts import Restarts
from headrace.engine.supervise.schema_watch import SchemaWatch
from headrace.engine.supervise.stopping import resume_counting, stop_flow, stop_in_parallel
from headrace.plan.model import FlowPlan, Plan

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["FlowRun", "Runner"]

_LOG = logging.getLogger(__name__)

_POLL_SECONDS, _LONGEST_POLL = 0.25, 1.0
_BUSY_SECONDS = 3.0
"""How long a trigger may take before a health check runs."""
_RECHECK_SECONDS, _RECHECK_WHEN_HEALTHY = 3.0, 6.0
_CHECKS_PER_SECOND = 4
_OBSERVER_SECONDS = 15.0
_LONGEST_BATCH = 600.0
"""How long a running batch may take before a flow with a new schema is stopped in the middle of it."""


@dataclass
class Runner:
    """Supervises the flows of one plan in this process. The failure of one flow does not affect the others."""

    starter: FlowStarter
    plan: Plan
    stopping: threading.Event = field(default_factory=threading.Event)
    runs: list[FlowRun] = field(default_factory=list)
    observers: Sequence[Observer] = ()
    stop_seconds: float = 30.0
    notes: Notes = field(default_factory=Notes)
    schemas: SchemaWatch | None = None
    scheduled: bool = True
    """Whether flows with a schedule wait for their time. Without it they run once, now. In a run until caught up they
    do not run at all."""
    health: Health = field(init=False)

    def __post_init__(self) -> None:
        until_caught_up = self.starter.until_caught_up
        if self.scheduled and until_caught_up:
            self.plan = self.plan.without_schedules()
        self.runs = self.runs or create_runs(self.starter, self.plan, self.notes)
        self.health = Health(self.starter.project, self.starter.state)
        self._orders = Orders(self.starter.state)
        self._restarts = Restarts(self.starter.project.spec.restart, until_caught_up=until_caught_up)
        self._chain = FeedChain.of(self.plan, self.starter) if until_caught_up else FeedChain({}, {})
        self._timetable = Timetable(self.starter.state, self.scheduled and not until_caught_up)

    def run(
        self, *, seconds: float | None = None, report: Callable[[Sequence[FlowRun]], None] = lambda _runs: None
    ) -> list[FlowRun]:
        """Run until all flows have ended, the time is over or `stopping` is set; then stop the flows that still run.

        The outcome of each flow is in its FlowRun.
        """
        deadline: float | None = None
        pause = min(_LONGEST_POLL, max(_POLL_SECONDS, len(self.runs) / 16))
        self._observer_thread = ObserverThread(self.observers, self.notes)
        schema_task = self.schemas.start(self.notes) if self.schemas and not self.starter.until_caught_up else None
        try:
            while not self.stopping.is_set():
                self._poll_all()
                report(self.runs)
                if seconds is not None and deadline is None:  # the time counts from the first poll, which starts flows
                    deadline = time.monotonic() + seconds
                if all(map(self._is_over, self.runs)) or (deadline is not None and time.monotonic() >= deadline):
                    break
                self.stopping.wait(pause)
        finally:
            if schema_task is not None:
                schema_task.close()
            self._stop()
            report(self.runs)
        return self.runs

    def _poll_all(self) -> None:
        try:
            self._take_schemas()
            self._take_orders()
            for run in self.runs:
                self._poll_guarded(run)
        except Exception as error:
            if not is_lost(error):
                raise
            lost = ProjectError(
                "spark-lost",
                "Spark's process has ended, and all flows with it",
                hint="see logs/engine.log in the state folder; the next start resumes the flows where they were",
                exit_code=Exit.TRANSIENT,
            )
            for run in self.runs:
                run.query = None
                run.fail(lost)
            raise lost from error

    def _poll_guarded(self, run: FlowRun) -> None:
        try:
            if run.switch is None:
                self._poll(run)
            elif run.switch.poll(self._poll):
                self._finish_switch(run, run.switch)
        except StoreError as error:
            self._halt(run, from_query(run.plan, f"StoreError: {error}"))

    def _finish_switch(self, run: FlowRun, switch: CandidateSwitch) -> None:
        switch.close()
        run.switch_to(switch.candidate.plan)
        resume_counting(run, self.starter)

    def _starter(self, run: FlowRun) -> FlowStarter:
        return run.starter or self.starter

    def _take_schemas(self) -> None:
        """Give flows the plans with accepted schemas, and note refused schemas."""
        plans = self.schemas.take() if self.schemas is not None else {}
        for run in self.runs:
            run.new_plan = plans.get(run.plan.name, run.new_plan)
            refusal = self.schemas.refusal(run.plan) if self.schemas is not None else None
            run.set_note(refusal or run.history)

    def _take_orders(self) -> None:
        """Take new orders (start or stop) for single flows."""
        orders = self._orders.news(run.plan.name for run in self.runs)
        for run in self.runs:
            order = orders.get(run.plan.name)
            if order is not None and order.want == "stopped":
                run.stop_order = order
            elif order is not None:
                self._reopen(run)

    def _reopen(self, run: FlowRun) -> None:
        """Let a flow run again that was stopped or has failed."""
        run.stop_order = None
        if run.stop_task is not None:  # it is about to stop: it is restarted as if it had a new plan
            run.new_plan = run.new_plan or run.plan
        elif run.done:
            run.error = run.pending_restart = None
            self._restarts.forget(run.plan.name)
            run.set_state("starting")

    def _is_over(self, run: FlowRun) -> bool:
        """Whether the flow has ended and will not run again, neither by itself nor by an order."""
        waits_for_order = run.stop_order is not None and not self.starter.until_caught_up
        return run.done and not waits_for_order and not self._chain.must_rerun(run)

    def _stop_after_batch(self, run: FlowRun) -> bool:
        """Stop the query after its running batch, in the background; True when it has ended."""
        if run.query is not None and run.stop_task is None:
            deadline = time.monotonic() + _LONGEST_BATCH
            run.stop_task = run_in_background(lambda: stop_flow(run, self._starter(run), deadline))
        if run.stop_task is not None and not run.stop_task.done():
            return False
        run.stop_task = None
        if run.query is not None:
            run.query.stop()  # in case the batch did not finish
            self._take_reports(run)
            failure = run.query.exception()
            run.query = None
            resume_counting(run, self._starter(run))
            if failure is not None:
                self._handle_failure(run, from_query(run.plan, failure))
        return True

    def _poll(self, run: FlowRun) -> None:
        run.schedule = self._timetable.describe(run.plan)
        if run.error is not None and self._timetable.holds(run.plan) and self._timetable.is_due(run.plan):
            self._reopen(run)
        if run.stop_order is not None:
            if run.state != "stopped" and self._stop_after_batch(run):
                run.error = run.pending_restart = None
                run.set_state("stopped")
        elif run.done and not self._chain.must_rerun(run):
            return
        elif run.new_plan is not None:
            plan = run.new_plan
            if self._stop_after_batch(run):
                run.plan, run.new_plan = plan, None
        elif run.query is not None:
            self._poll_query(run, run.query)
        elif run.pending_restart is None:
            self._start_if_ready(run)
        else:
            self._restart_if_due(run, run.pending_restart)

    def _poll_query(self, run: FlowRun, query: StreamingQuery) -> None:
        if self._take_reports(run):
            run.mark_running()
        if query.isActive:
            self._watch(run)
        else:
            self._take_reports(run)
            self._handle_end(run, query)

    def _take_reports(self, run: FlowRun) -> bool:
        """Take Spark's reports and pass them on; whether there is a new batch."""
        reports = run.take_reports()
        for report in reports:
            self._notify(run, report)
        if reports:
            run.busy_since = None
            self._chain.note_batches(run.plan.name, reports)
            self._update_history(run)
            publish_if_caught_up(run, self._starter(run), self.notes, reports)
        return bool(reports)

    def _notify(self, run: FlowRun, report: Mapping[str, Any]) -> None:
        if run.observer is None:
            self._observer_thread.notify(run.plan, report)
            return
        try:
            run.observer.batch_done(run.plan, report)
        except OSError as error:
            self.notes.add(f"positions of {run.name}", str(error))

    def _update_history(self, run: FlowRun) -> None:
        if any(stream.spec.backfill for stream in run.plan.streams()):
            text = progress(self._starter(run).state.generations(run.plan.name).current())
            run.history = None if text is None else ProjectError("reading-history", text)

    def _start_if_ready(self, run: FlowRun) -> None:
        try:
            if self._is_ready(run.plan):
                self._start(run)
            else:
                run.set_state("waiting")
        except ProjectError as error:
            self._handle_failure(run, error)

    def _is_ready(self, flow: FlowPlan) -> bool:
        """Whether the schedule, the flows that feed this flow and its inputs let it start."""
        if not self._timetable.is_due(flow) or self._chain.is_waiting(flow.name, self.runs):
            return False
        return inputs_ready(flow, self.runs, self.starter, self._is_over)

    def _start(self, run: FlowRun) -> None:
        run.set_state("degraded" if run.pending_restart else "starting")
        run.busy_since = run.health_check = None
        run.health_check_due = 0.0
        self._chain.note_start(run.plan.name)
        self._timetable.begins(run.plan)
        run.query = self._start_query(run)
        run.generation = self._starter(run).state.current(run.plan.name).id
        self._update_history(run)

    def _start_query(self, run: FlowRun) -> StreamingQuery:
        try:
            return self._starter(run).start(run.plan)
        except ProjectError:
            raise
        except Exception as error:  # a full disk, or a bug of ours: the other flows must continue
            if is_lost(error):
                raise
            _LOG.exception("flow %s could not be started", run.plan.name)
            raise from_query(run.plan, error) from error

    def _watch(self, run: FlowRun) -> None:
        """Watch an active flow. If it makes no progress, check its dependencies in the background."""
        lost = self.health.guard.problem()
        if lost is not None:
            self._halt(run, lost)
            return
        if run.take_status():
            run.mark_running()
            publish_if_caught_up(run, self._starter(run), self.notes)
            return
        now = time.monotonic()
        if run.health_check is not None and run.health_check.done():
            problem, run.health_check = self._check_result(run.health_check), None
            pause = max(_RECHECK_WHEN_HEALTHY, len(self.runs) / _CHECKS_PER_SECOND)
            run.health_check_due = now + (_RECHECK_SECONDS if problem or run.state != "running" else pause)
            if problem is not None:
                run.degrade(problem)
            elif run.state == "starting" or run.plan.spec.mode == "realtime":
                run.mark_running()
        elif run.health_check is None and run.busy_since and now - run.busy_since > _BUSY_SECONDS:
            self._check_if_due(run, now)

    def _check_if_due(self, run: FlowRun, now: float) -> None:
        if now >= run.health_check_due:
            run.health_check = run_in_background(lambda: self.health.problem(run.plan, run.generation))

    def _check_result(self, check: Future[ProjectError | None]) -> ProjectError | None:
        try:
            return check.result()
        except Exception as error:  # the check of a source or sink has a bug
            self.notes.add("health", f"{type(error).__name__}: {error}")
            return None

    def _halt(self, run: FlowRun, why: ProjectError) -> None:
        """Stop a flow at once, before it writes to a place that it no longer owns."""
        if run.query is not None:
            run.query.stop()
            run.query = None
        self._handle_failure(run, why)

    def _handle_end(self, run: FlowRun, query: StreamingQuery) -> None:
        failure = query.exception()
        run.query = None
        if failure is not None:
            self._handle_failure(run, from_query(run.plan, failure))
        elif finish(self._starter(run).state.generations(run.plan.name).current()):
            run.pending_restart = None  # the history is read: the next poll starts the flow again
            resume_counting(run, self._starter(run))
        elif self.starter.until_caught_up or run.plan.spec.mode == "batch":
            run.caught_up = True
            publish_if_caught_up(run, self._starter(run), self.notes)
            self._timetable.ends(run.plan)
            resume_counting(run, self._starter(run))
            run.pending_restart = None
            run.set_state("waiting" if self._timetable.holds(run.plan) else "stopped")
        else:
            message = f"flow '{run.plan.name}' ended, and Spark reports no reason"
            hint = "see logs/engine.log in the state folder"
            self._handle_failure(run, ProjectError("flow-failed", message, hint=hint))

    def _handle_failure(self, run: FlowRun, error: ProjectError) -> None:
        """Fail the flow, or schedule its restart."""
        if error.code == "out-of-memory":
            self.starter.out_of_memory.add(run.plan.name)
        restart = self._restarts.after(run, error)
        if restart is None:
            self._fail(run, error)
            return
        run.pending_restart = restart
        run.health_check, run.health_check_due = None, 0.0
        run.degrade(error)

    def _fail(self, run: FlowRun, error: ProjectError) -> None:
        run.fail(error)
        self._timetable.ends(run.plan)

    def _restart_if_due(self, run: FlowRun, restart: PendingRestart) -> None:
        """Start a flow again when its dependencies are available and its restart is due."""
        now = time.monotonic()
        if run.health_check is None:
            self._check_if_due(run, now)
            return
        if not run.health_check.done():
            return
        problem, run.health_check = self._check_result(run.health_check), None
        if problem is not None and not self.starter.until_caught_up:
            restart.is_external = restart.was_unavailable = True
            run.degrade(problem)
            run.health_check_due = now + _RECHECK_SECONDS
            return
        if now < restart.not_before and not restart.was_unavailable:
            run.health_check_due = restart.not_before
            return
        if not restart.is_external and not self._restarts.use_budget(run.plan.name):
            self._fail(run, restart.error)
            return
        run.restarts += 1
        try:
            self._start(run)
        except ProjectError as error:
            self._handle_failure(run, error)

    def _stop(self) -> None:
        """Let running batches finish, up to a deadline, so that the next start has no batch to repeat."""
        deadline = time.monotonic() + self.stop_seconds
        switches = [run.switch for run in self.runs if run.switch is not None]
        for switch in switches:
            switch.stop(deadline)
        runs = [*self.runs, *(switch.candidate for switch in switches)]
        stop_in_parallel(runs, lambda run: self._stop_guarded(run, deadline), deadline)
        for run in runs:
            self._take_reports(run)
            if not run.done:
                run.set_state("stopped")
        for switch in switches:
            switch.close()
        self._observer_thread.close(_OBSERVER_SECONDS)

    def _stop_guarded(self, run: FlowRun, deadline: float) -> None:
        try:
            stop_flow(run, self._starter(run), deadline)
        except Exception as error:  # the other flows must be stopped in any case
            self.notes.add(f"stop of {run.plan.name}", str(error))
