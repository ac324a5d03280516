"""The supervisor: starts the flows of a plan, watches them, starts them again when they fail, stops them."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.core.backoff import Backoff
from headrace.core.errors import Exit, ProjectError
from headrace.core.files.objects import StoreError
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.inputs.backfill import finish, progress
from headrace.engine.spark.failures import fault_of, from_query
from headrace.engine.spark.session import is_lost
from headrace.engine.state.orders import Orders
from headrace.engine.state.schedules import Timetable
from headrace.engine.supervise.background import Notes, Teller, ask
from headrace.engine.supervise.candidate_switch import Building, runs_of
from headrace.engine.supervise.chains import Chain
from headrace.engine.supervise.flow_run import FlowRun, Trouble
from headrace.engine.supervise.health import Health
from headrace.engine.supervise.observers import Observer
from headrace.engine.supervise.publish_caught_up import show_if_caught_up
from headrace.engine.supervise.readiness import inputs_ready
from headrace.engine.supervise.schema_watch import SchemaWatch
from headrace.engine.supervise.stopping import count_on, stop_flow
from headrace.plan.model import FlowPlan, Plan

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["FlowRun", "Runner"]

_LOG = logging.getLogger(__name__)

_POLL_SECONDS, _LONGEST_POLL = 0.25, 1.0
_BUSY_SECONDS = 3.0
"""How long a trigger may take before somebody looks what is the matter."""
_LOOK_AGAIN, _LOOK_WHEN_WELL = 3.0, 6.0
_LOOKS_PER_SECOND = 4
_TELL_SECONDS = 15.0
_LONGEST_BATCH = 600.0
"""How long a running batch may take before a flow that has a new schema is stopped in the middle of it."""


@dataclass
class Runner:
    """Supervises the flows of one plan in this process. One flow's failure never touches the others.

    A flow that fails for a reason of its own has failed. What comes from outside is waited for, as long as it lasts;
    what nobody can explain is tried again as often as the project's restart budget allows. With `until_caught_up`
    every failure is final, since who runs a flow once wants to know, except for a lost executor: that is a machine
    too busy to start a process in time, and costs the budget.
    """

    starter: FlowStarter
    plan: Plan
    stopping: threading.Event = field(default_factory=threading.Event)
    runs: list[FlowRun] = field(default_factory=list)
    observers: Sequence[Observer] = ()
    stop_seconds: float = 30.0
    notes: Notes = field(default_factory=Notes)
    schemas: SchemaWatch | None = None
    scheduled: bool = True
    """Whether flows with a schedule wait for their time, for which there is none until caught up; otherwise they run
    now, once."""
    health: Health = field(init=False)

    def __post_init__(self) -> None:
        if self.scheduled and self.starter.until_caught_up:
            self.plan = self.plan.without_schedules()
        self.runs = self.runs or runs_of(self.starter, self.plan, self.notes)
        self.health = Health(self.starter.project, self.starter.state)
        self._orders = Orders(self.starter.state)
        self._failures: defaultdict[str, deque[float]] = defaultdict(deque)
        self._chain = Chain.of(self.plan, self.starter) if self.starter.until_caught_up else Chain({}, {})
        self._timetable = Timetable(self.starter.state, self.scheduled and not self.starter.until_caught_up)

    def run(
        self, *, seconds: float | None = None, report: Callable[[Sequence[FlowRun]], None] = lambda _runs: None
    ) -> list[FlowRun]:
        """Run until all flows have ended, the time is over or `stopping` is set; then stop what still runs.

        What became of a flow is in its FlowRun.
        """
        deadline: float | None = None
        pause = min(_LONGEST_POLL, max(_POLL_SECONDS, len(self.runs) / 16))
        self._teller = Teller(self.observers, self.notes)
        looking = self.schemas.start(self.notes) if self.schemas and not self.starter.until_caught_up else None
        try:
            while not self.stopping.is_set():
                self._tend_all()
                report(self.runs)
                if seconds is not None and deadline is None:  # to start the flows is not yet to run them
                    deadline = time.monotonic() + seconds
                if all(self._over(run) for run in self.runs) or (deadline is not None and time.monotonic() >= deadline):
                    break
                self.stopping.wait(pause)
        finally:
            if looking is not None:
                looking.close()
            self._stop()
            report(self.runs)
        return self.runs

    def _tend_all(self) -> None:
        try:
            self._take_schemas()
            self._take_orders()
            for run in self.runs:
                self._tend_or_halt(run)
        except Exception as error:
            if not is_lost(error):
                raise
            lost = ProjectError(
                "spark-lost",
                "Spark's process has ended; every flow ended with it",
                hint="see logs/engine.log of the state folder; the next start goes on where the flows were",
                exit_code=Exit.TRANSIENT,
            )
            for run in self.runs:
                run.query = None
                run.fail(lost)
            raise lost from error

    def _tend_or_halt(self, run: FlowRun) -> None:
        try:
            if run.building is None:
                self._tend(run)
            elif run.building.tend(self._tend):
                self._take_over(run, run.building)
        except StoreError as away:
            self._halt(run, from_query(run.plan, f"StoreError: {away}"))

    def _take_over(self, run: FlowRun, building: Building) -> None:
        building.close()
        run.take_over(building.candidate.plan)
        count_on(run, self.starter)

    def _starter(self, run: FlowRun) -> FlowStarter:
        return run.starter or self.starter

    def _take_schemas(self) -> None:
        """Let flows whose schema has changed go on with it, and say where the newest was refused."""
        plans = self.schemas.take() if self.schemas is not None else {}
        for run in self.runs:
            run.renewal = plans.get(run.plan.name, run.renewal)
            refusal = self.schemas.refusal(run.plan) if self.schemas is not None else None
            run.remark(refusal or run.history)

    def _take_orders(self) -> None:
        """Do what people ask of single flows."""
        news = self._orders.news(run.plan.name for run in self.runs)
        for run in self.runs:
            order = news.get(run.plan.name)
            if order is not None and order.want == "stopped":
                run.stop = order
            elif order is not None:
                self._want_again(run)

    def _want_again(self, run: FlowRun) -> None:
        """Let a flow run that was stopped or has failed."""
        run.stop = None
        if run.leaving is not None:  # it is about to stop: as if it had a new plan
            run.renewal = run.renewal or run.plan
        elif run.done:
            run.error = run.trouble = None
            self._failures.pop(run.plan.name, None)
            run.become("starting")

    def _over(self, run: FlowRun) -> bool:
        """Whether it will not go on by itself, nor because somebody asks for it."""
        asked = run.stop is not None and not self.starter.until_caught_up
        return run.done and not asked and not self._chain.is_fed(run)

    def _renew(self, run: FlowRun, plan: FlowPlan) -> None:
        """Start a flow anew on its own checkpoint, when its running batch is done."""
        if self._gone(run):
            run.plan, run.renewal = plan, None

    def _hold(self, run: FlowRun) -> None:
        """Stop a flow that somebody wants to be stopped, when its running batch is done."""
        if run.state != "stopped" and self._gone(run):
            run.error = run.trouble = None
            run.become("stopped")

    def _gone(self, run: FlowRun) -> bool:
        """Whether the flow's query has ended; if not, it is let go after its running batch."""
        if run.query is not None and run.leaving is None:
            deadline = time.monotonic() + _LONGEST_BATCH
            run.leaving = ask(lambda: stop_flow(run, self._starter(run), deadline))
        if run.leaving is not None and not run.leaving.done():
            return False
        run.leaving = None
        if run.query is not None:
            run.query.stop()  # in case it could not be stopped gently
            self._take_in(run)
            failure = run.query.exception()
            run.query = None
            count_on(run, self._starter(run))
            if failure is not None:
                self._failed(run, from_query(run.plan, failure))
        return True

    def _tend(self, run: FlowRun) -> None:
        run.schedule = self._timetable.told(run.plan)
        if run.error is not None and self._timetable.holds(run.plan) and self._timetable.is_due(run.plan):
            self._want_again(run)
        if run.stop is not None:
            self._hold(run)
            return
        if run.done and not self._chain.is_fed(run):
            return
        if run.renewal is not None:
            self._renew(run, run.renewal)
            return
        if run.query is None:
            if run.trouble is None:
                self._begin(run)
            else:
                self._try_again(run, run.trouble)
            return
        if self._take_in(run):
            run.works()
        if run.query.isActive:
            self._watch(run)
        else:
            self._take_in(run)
            self._ended(run)

    def _take_in(self, run: FlowRun) -> bool:
        """What Spark reports; whether there is a new batch."""
        reports = run.take_reports()
        for report in reports:
            self._tell(run, report)
        if reports:
            run.busy_since = None
            self._chain.takes(run.plan.name, reports)
            self._look_at_history(run)
            show_if_caught_up(run, self._starter(run), self.notes, reports)
        return bool(reports)

    def _tell(self, run: FlowRun, report: Mapping[str, Any]) -> None:
        if run.log is None:
            self._teller.tell(run.plan, report)
            return
        try:
            run.log.batch_done(run.plan, report)
        except OSError as error:
            self.notes.add(f"positions of {run.name}", str(error))

    def _look_at_history(self, run: FlowRun) -> None:
        if any(stream.spec.backfill for stream in run.plan.streams()):
            said = progress(self._starter(run).state.generations(run.plan.name).current())
            run.history = None if said is None else ProjectError("reading-history", said)

    def _begin(self, run: FlowRun) -> None:
        try:
            if not self._ready(run.plan):
                run.become("waiting")
                return
            self._start(run)
        except ProjectError as error:
            self._failed(run, error)

    def _start(self, run: FlowRun) -> None:
        run.become("degraded" if run.trouble else "starting")
        run.busy_since = run.look = None
        run.look_due = 0.0
        self._chain.begins(run.plan.name)
        self._timetable.begins(run.plan)
        run.query = self._started(run)
        run.generation = self._starter(run).state.current(run.plan.name).id
        self._look_at_history(run)

    def _started(self, run: FlowRun) -> StreamingQuery:
        flow = run.plan
        try:
            return self._starter(run).start(flow)
        except ProjectError:
            raise
        except Exception as error:  # a full disk, say; a fault of ours must not end the other flows either
            if is_lost(error):
                raise
            _LOG.exception("flow %s could not be started", flow.name)
            raise from_query(flow, error) from error

    def _ready(self, flow: FlowPlan) -> bool:
        """Whether it is time for a flow, and what it reads is there; until caught up, flows that write to topics or
        files that it reads have ended."""
        if not self._timetable.is_due(flow) or self._chain.is_waiting(flow.name, self.runs):
            return False
        return inputs_ready(flow, self.runs, self.starter, self._over)

    def _watch(self, run: FlowRun) -> None:
        """An active flow: is it getting on? If not, a side thread looks why."""
        gone = self.health.guard.problem()
        if gone is not None:
            self._halt(run, gone)
            return
        if run.take_status():
            run.works()
            show_if_caught_up(run, self._starter(run), self.notes)
            return
        now = time.monotonic()
        if run.look is not None and run.look.done():
            found, run.look = self._answer(run.look), None
            well = max(_LOOK_WHEN_WELL, len(self.runs) / _LOOKS_PER_SECOND)
            run.look_due = now + (_LOOK_AGAIN if found or run.state != "running" else well)
            if found is not None:
                run.degrade(found)
            elif run.state == "starting" or run.plan.spec.mode == "realtime":
                run.works()
        elif run.look is None and run.busy_since and now - run.busy_since > _BUSY_SECONDS and now >= run.look_due:
            self._look(run)

    def _look(self, run: FlowRun) -> None:
        run.look = ask(lambda: self.health.problem(run.plan, run.generation))

    def _answer(self, look: Future[ProjectError | None]) -> ProjectError | None:
        try:
            return look.result()
        except Exception as error:  # a source or sink whose check is at fault
            self.notes.add("health", f"{type(error).__name__}: {error}")
            return None

    def _halt(self, run: FlowRun, why: ProjectError) -> None:
        """Stop a flow before it writes where it must not."""
        if run.query is not None:
            run.query.stop()
            run.query = None
        self._failed(run, why)

    def _ended(self, run: FlowRun) -> None:
        assert run.query is not None
        failure = run.query.exception()
        run.query = None
        if failure is not None:
            self._failed(run, from_query(run.plan, failure))
        elif finish(self._starter(run).state.generations(run.plan.name).current()):
            run.trouble = None  # the next look starts the flow again
            count_on(run, self._starter(run))
        elif self.starter.until_caught_up or run.plan.spec.mode == "batch":
            run.caught_up = True
            show_if_caught_up(run, self._starter(run), self.notes)
            self._timetable.ends(run.plan)
            count_on(run, self._starter(run))
            run.trouble = None
            run.become("waiting" if self._timetable.holds(run.plan) else "stopped")
        else:
            message = f"flow '{run.plan.name}' ended, and Spark does not say why"
            hint = "the whole story is in logs/engine.log of the state folder"
            self._failed(run, ProjectError("flow-failed", message, hint=hint))

    def _failed(self, run: FlowRun, error: ProjectError) -> None:
        """What to do about a failure: nothing more, or try again after a while."""
        fault = fault_of(error, has_run=run.has_run)
        if error.code == "out-of-memory":
            self.starter.careful.add(run.plan.name)
        once = self.starter.until_caught_up
        if fault == "own" or (once and error.code != "executor-lost"):
            run.fail(error)
            self._timetable.ends(run.plan)
            return
        policy = self.starter.project.spec.restart
        attempts = run.trouble.attempts + 1 if run.trouble else 0
        first, longest = policy.backoff.total_seconds(), policy.max_backoff.total_seconds()
        wait = Backoff(first, longest, jitter=(0.8, 1.2)).pause(attempts)
        run.trouble = Trouble(error, fault == "outside" and not once, attempts, time.monotonic() + wait)
        run.look, run.look_due = None, 0.0
        run.degrade(error)

    def _try_again(self, run: FlowRun, trouble: Trouble) -> None:
        """Start a flow once more when what it needs is there and its time has come."""
        now = time.monotonic()
        if run.look is None:
            if now >= run.look_due:
                self._look(run)
            return
        if not run.look.done():
            return
        found = self._answer(run.look)
        if found is not None and not self.starter.until_caught_up:
            trouble.outside = trouble.was_away = True
            run.degrade(found)
            run.look, run.look_due = None, now + _LOOK_AGAIN
            return
        run.look = None
        if now < trouble.not_before and not trouble.was_away:
            run.look_due = trouble.not_before
            return
        if not trouble.outside and not self._forgiven(run.plan.name, now):
            run.fail(trouble.error)
            self._timetable.ends(run.plan)
            return
        run.restarts += 1
        try:
            self._start(run)
        except ProjectError as error:
            self._failed(run, error)

    def _forgiven(self, flow: str, now: float) -> bool:
        """Whether the budget has room for one more unexplained failure."""
        policy, failures = self.starter.project.spec.restart, self._failures[flow]
        while failures and failures[0] < now - policy.within.total_seconds():
            failures.popleft()
        if len(failures) >= policy.budget:
            return False
        failures.append(now)
        return True

    def _stop(self) -> None:
        """Let each running batch finish, up to a deadline, so that the next start has nothing to repeat."""
        deadline = time.monotonic() + self.stop_seconds
        threads = []
        for building in (run.building for run in self.runs if run.building is not None):
            building.stop(deadline)
        for run in self._all_runs():
            if run.query is not None and run.query.isActive:
                thread = threading.Thread(target=self._stop_one, args=(run, deadline), daemon=True)
                thread.start()
                threads.append(thread)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()) + 10.0)
        for run in self._all_runs():
            self._take_in(run)
            if not run.done:
                run.become("stopped")
        for building in (run.building for run in self.runs if run.building is not None):
            building.close()
        self._teller.close(_TELL_SECONDS)

    def _all_runs(self) -> list[FlowRun]:
        """The runs, and those of candidates."""
        return [*self.runs, *(run.building.candidate for run in self.runs if run.building is not None)]

    def _stop_one(self, run: FlowRun, deadline: float) -> None:
        try:
            stop_flow(run, self._starter(run), deadline)
        except Exception as error:  # the other flows are to be stopped in any case
            self.notes.add(f"stop of {run.plan.name}", str(error))
