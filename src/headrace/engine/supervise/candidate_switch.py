"""The switch to a candidate generation.

::

    building   both generations run
       |       the candidate has caught up
    holding    the candidate is stopped after a batch;
       |       the running generation continues until it has read at least as far in every input
    switching  the running generation is stopped after a batch;
       |       the candidate runs one batch up to the same positions, and both close the same windows
       |       (see `candidate_alignment`), so every record and window is on one side of the switch;
       |       the mark `publish.json` is set;
       |       every sink publishes the candidate's rows, and the pointer to the current generation is renamed
      done     the flow continues as the former candidate

A failure before the mark is set leads back to *building*. After it, the switch is tried again until it succeeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from headrace.core.errors import ProjectError
from headrace.core.positions import Positions, Reached
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.inputs.backfill import is_pending
from headrace.engine.positions.positions import PositionLog, input_positions
from headrace.engine.spark.failures import fault_of, from_query
from headrace.engine.state import milestones
from headrace.engine.state.generations import Generation
from headrace.engine.supervise.background import Notes, run_in_background
from headrace.engine.supervise.candidate import (
    clean_up_after_switch,
    is_publishing,
    mark_publishing,
    publish_candidate,
    running_definition,
    sink_effects,
)
from headrace.engine.supervise.candidate_alignment import BATCH_SECONDS, Alignment, has_reached, reached_positions
from headrace.engine.supervise.flow_run import FlowRun
from headrace.engine.supervise.stopping import resume_counting, stop_flow
from headrace.plan.model import FlowPlan, Plan

Phase = Literal["building", "holding", "switching"]
_PHASE_TEXT: dict[Phase, str] = {"building": "catching up", "holding": "about to switch", "switching": "switching"}
_CATCH_UP_SECONDS = 30.0
"""A candidate that reaches the position of the running generation within this time has caught up."""
_HOLD_SECONDS = 60.0
_RETRY_SECONDS = 5.0


@dataclass
class CandidateSwitch:
    """A flow with a candidate: `run` is the running generation, `candidate` the one that will replace it."""

    run: FlowRun
    candidate: FlowRun
    old: FlowStarter
    """Starts the running generation with its stored definition."""
    new: FlowStarter
    """Starts the candidate."""
    notes: Notes = field(default_factory=Notes)
    phase: Phase = "building"
    _inputs: dict[str, Positions] = field(default_factory=dict)
    _work: Future[Any] | None = None
    _target: Future[dict[str, Reached]] | None = None
    """The positions that the candidate has to reach to count as caught up."""
    _since: float = 0.0
    _not_before: float = 0.0

    def __post_init__(self) -> None:
        self._inputs = input_positions(self.candidate.plan, self.new.project.context)
        if is_publishing(self._candidate):
            self.phase = "switching"

    @property
    def text(self) -> str:
        """The progress, for people."""
        if self.candidate.error is not None:
            return f"failed: {self.candidate.error.message}"
        if self.candidate.reason is not None:
            return f"degraded: {self.candidate.reason.text}"
        return _PHASE_TEXT[self.phase]

    @property
    def _candidate(self) -> Generation:
        return self.new.state.current(self.candidate.plan.name)

    @property
    def _current(self) -> Generation:
        return self.old.state.current(self.run.plan.name)

    def poll(self, poll_run: Callable[[FlowRun], None]) -> bool:
        """Supervise both generations, each with `poll_run`; True when the switch is done."""
        if self.phase == "switching":
            return not self.run.done and self._poll_switching()
        poll_run(self.run)
        if self.run.done:
            self._stop_candidate()
        elif self.phase == "building":
            if self.candidate.state == "stopped":  # it was stopped with the flow, which runs again
                self.candidate.set_state("starting")
            poll_run(self.candidate)
            if self._both_run() and self._has_caught_up():
                self._hold_candidate()
        else:
            self._poll_holding()
        return False

    def stop(self, deadline: float) -> None:
        """Wait for the work under way. The next start repeats what is not finished by the deadline."""
        if self._work is not None:
            wait([self._work], max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        for known in self._inputs.values():
            known.close()

    def _both_run(self) -> bool:
        return self.run.query is not None and self.candidate.query is not None and self.candidate.state == "running"

    def _stop_candidate(self) -> None:
        """A flow that has failed cannot be switched: some sinks may have its last batch."""
        if self.candidate.query is not None:
            self.candidate.query.stop()
            self.candidate.query = None
        self.candidate.set_state("stopped")

    def _has_caught_up(self) -> bool:
        """Whether the candidate has soon reached the position that the running generation had."""
        now = time.monotonic()
        if self._target is None and now >= self._not_before:
            self._target, self._since = run_in_background(self._read_target), now
        if self._target is None or not self._target.done() or is_pending(self._candidate):
            return False
        try:
            target = self._target.result()
        except Exception as error:  # a source is unavailable; the flows report it themselves
            self.notes.add("candidate", f"{type(error).__name__}: {error}")
            target = {}
        if not target:
            self._target, self._not_before = None, now + _RETRY_SECONDS
            return False
        if not has_reached(reached_positions(self._inputs, self._candidate), target):
            return False
        self._target = None
        limit = max(_CATCH_UP_SECONDS, 5 * self.candidate.plan.trigger.total_seconds())
        return now - self._since <= limit

    def _read_target(self) -> dict[str, Reached]:
        """The positions of the running generation; for an input that it does not have, the end of the input."""
        inputs = input_positions(self.candidate.plan, self.new.project.context)
        try:
            at = reached_positions(inputs, self._current)
            if not at:
                return {}
            missing = {name: known.measure(None) for name, known in inputs.items() if name not in at}
        finally:
            for known in inputs.values():
                known.close()
        ends = {
            name: {
                f"{split.topic}:{split.partition}" if split.counts_records else split.topic: (split.end,)
                for split in splits
            }
            for name, splits in missing.items()
        }
        return {**at, **ends}

    def _hold_candidate(self) -> None:
        deadline = time.monotonic() + BATCH_SECONDS
        self._work = run_in_background(lambda: stop_flow(self.candidate, self.new, deadline))
        self._since = time.monotonic()
        self.phase = "holding"

    def _poll_holding(self) -> None:
        assert self._work is not None, "a candidate is held by stopping it"
        if not self._work.done():
            self._since = time.monotonic()
            return
        if self.candidate.query is not None:
            self._finish_query(self.candidate, self.new)
        held, current = (reached_positions(self._inputs, each) for each in (self._candidate, self._current))
        if self._candidate.checkpoint.in_flight() or time.monotonic() - self._since > _HOLD_SECONDS:
            self._back_to_building()
        elif self._current_runs() and has_reached(current, {name: held[name] for name in held if name in current}):
            self._work, self.phase = run_in_background(self._switch), "switching"

    def _current_runs(self) -> bool:
        """Whether the running generation runs and is not about to stop."""
        return self.run.query is not None and self.run.stop_task is None

    def _back_to_building(self) -> None:
        self._work, self._target, self.phase = None, None, "building"

    def _finish_query(self, run: FlowRun, starter: FlowStarter) -> None:
        """Take the last reports of a query that has ended."""
        run.take_reports()
        run.query = None
        resume_counting(run, starter)

    def _poll_switching(self) -> bool:
        """Whether the switch is done."""
        if self._work is None:
            if time.monotonic() >= self._not_before:
                self._work = run_in_background(self._publish)
            return False
        if not self._work.done():
            return False
        work, self._work = self._work, None
        try:
            work.result()
            return True
        except Exception as error:
            self._handle_failure(error if isinstance(error, ProjectError) else from_query(self.run.plan, error))
        return False

    def _handle_failure(self, error: ProjectError) -> None:
        for run, starter in ((self.run, self.old), (self.candidate, self.new)):
            if run.query is not None:
                run.query.stop()
                self._finish_query(run, starter)
        if not is_publishing(self._candidate):
            self.notes.add("candidate", f"the switch of {self.run.plan.name} is postponed: {error.message}")
            self._back_to_building()
        elif fault_of(error, has_run=True) == "own":
            self.run.fail(error)
        else:
            self.run.degrade(error)
        self._not_before = time.monotonic() + _RETRY_SECONDS

    def _switch(self) -> None:
        """The whole switch, in the background. The supervisor does not touch the two runs meanwhile."""
        stop_flow(self.run, self.old, time.monotonic() + BATCH_SECONDS)
        if self._current.checkpoint.in_flight():
            raise ProjectError("switch-put-off", "the last batch of the running generation did not finish")
        Alignment(self.run, self.candidate, self.old, self.new, self._inputs).align()
        # checked once more, because the next step cannot be undone
        sink_effects(self.candidate.plan, self._candidate.id, self.new.project.context)
        milestones.reach("before_switch", self.run.plan.name, 0)
        mark_publishing(self._candidate, self._current)
        self._publish()

    def _publish(self) -> None:
        publish_candidate(self.candidate.plan, self.old.state, self.new.project.context, self.new.spark)


def create_runs(starter: FlowStarter, plan: Plan, notes: Notes) -> list[FlowRun]:
    """One run for each flow of a plan.

    A flow with a candidate runs with the definition of its current generation, and the candidate runs in parallel. With
    `until_caught_up` the candidate does not run, because such a run does not wait for a switch.
    """
    return [_create_run(starter, flow, notes) for flow in plan.flows]


def _create_run(starter: FlowStarter, flow: FlowPlan, notes: Notes) -> FlowRun:
    state, project = starter.state, starter.project
    clean_up_after_switch(flow, state, project.context)
    candidate = state.generations(flow.name).candidate()
    if candidate is None:
        return FlowRun(flow)
    new = replace(starter, state=state.with_candidate(flow.name), is_candidate=True)
    if is_publishing(candidate):  # the old generation does not run again, so its definition is not needed
        run = FlowRun(flow)
        run.switch = CandidateSwitch(run, _candidate_run(flow, new), starter, new, notes)
        return run
    current = running_definition(project, state, flow.name)
    old = replace(starter, project=current.project)
    run = FlowRun(current.flow, starter=old)
    if not starter.until_caught_up:
        run.switch = CandidateSwitch(run, _candidate_run(flow, new), old, new, notes)
    return run


def _candidate_run(flow: FlowPlan, starter: FlowStarter) -> FlowRun:
    return FlowRun(flow, starter=starter, is_candidate=True, observer=PositionLog(starter.state))
