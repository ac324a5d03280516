"""How a candidate takes over: it catches up, both generations end a batch at the same place, and one goes on.

1. *building*: both run. 2. *holding*: the candidate has caught up and was stopped after a batch; the other goes on
until it has come at least as far in every input. 3. *switching*: it is stopped after a batch too. The candidate runs
one batch up to exactly the same place, and both close the windows that either of them has closed. So every record, and
every window, is on one side of the switch. Then the sinks are published and the pointer is turned.

Up to the mark that is set before anything is published, whatever happens leads back to 1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
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
from headrace.engine.supervise.background import Notes, ask
from headrace.engine.supervise.candidate import (
    begin_publishing,
    is_publishing,
    publish,
    running,
    sides,
    tidy_after_switch,
)
from headrace.engine.supervise.flow_run import FlowRun
from headrace.engine.supervise.stopping import count_on, stop_flow
from headrace.plan.model import FlowPlan, Plan

Phase = Literal["building", "holding", "switching"]
_WORDS: dict[Phase, str] = {"building": "catching up", "holding": "about to switch", "switching": "switching"}
_CLOSE_SECONDS = 30.0
"""So long a candidate may take to come where the other was, and count as caught up."""
_HOLD_SECONDS = 60.0
_BATCH_SECONDS = 600.0
_AGAIN_SECONDS = 5.0


@dataclass
class Building:
    """A flow whose next generation is built: `run` is the one that readers see, `candidate` the one that is to be."""

    run: FlowRun
    candidate: FlowRun
    old: FlowStarter
    """Starts what runs, as it was defined."""
    new: FlowStarter
    """Starts the candidate."""
    notes: Notes = field(default_factory=Notes)
    phase: Phase = "building"
    _inputs: dict[str, Positions] = field(default_factory=dict)
    _work: Future[Any] | None = None
    _aims: Future[dict[str, Reached]] | None = None
    _since: float = 0.0
    _not_before: float = 0.0

    def __post_init__(self) -> None:
        self._inputs = input_positions(self.candidate.plan, self.new.project.context)
        if is_publishing(self._candidate):
            self.phase = "switching"

    @property
    def words(self) -> str:
        """How far it is."""
        if self.candidate.error is not None:
            return f"failed: {self.candidate.error.message}"
        if self.candidate.reason is not None:
            return f"degraded: {self.candidate.reason.text}"
        return _WORDS[self.phase]

    @property
    def _candidate(self) -> Generation:
        return self.new.state.current(self.candidate.plan.name)

    @property
    def _current(self) -> Generation:
        return self.old.state.current(self.run.plan.name)

    def tend(self, tend: Callable[[FlowRun], None]) -> bool:
        """Look after both, `tend` being how one run is looked after; whether the candidate has taken over."""
        if self.phase == "switching":
            return not self.run.done and self._switch()
        tend(self.run)
        if self.run.done:
            self._wait_for_the_other()
        elif self.phase == "building":
            if self.candidate.state == "stopped":  # with the other, for which somebody has asked again
                self.candidate.become("starting")
            tend(self.candidate)
            if self._is_well() and self._has_caught_up():
                self._hold()
        else:
            self._await_the_other()
        return False

    def stop(self, deadline: float) -> None:
        """Let what is being done come to its end; what is not by then is done by the next start."""
        if self._work is not None:
            wait([self._work], max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Let go of all connections."""
        for known in self._inputs.values():
            known.close()

    def _is_well(self) -> bool:
        return self.run.query is not None and self.candidate.query is not None and self.candidate.state == "running"

    def _wait_for_the_other(self) -> None:
        """Nobody can take over from a flow that has failed: some sinks may have its last batch."""
        if self.candidate.query is not None:
            self.candidate.query.stop()
            self.candidate.query = None
        self.candidate.become("stopped")

    def _has_caught_up(self) -> bool:
        """Whether it has come, soon enough, where the other was when it was last asked."""
        now = time.monotonic()
        if self._aims is None and now >= self._not_before:
            self._aims, self._since = ask(self._aim), now
        if self._aims is None or not self._aims.done() or is_pending(self._candidate):
            return False
        try:
            aims = self._aims.result()
        except Exception as error:  # a source that is away; the flows themselves say so
            self.notes.add("candidate", f"{type(error).__name__}: {error}")
            aims = {}
        if not aims:
            self._aims, self._not_before = None, now + _AGAIN_SECONDS
            return False
        if not _is_there(self._reached(self._candidate), aims):
            return False
        self._aims = None
        limit = max(_CLOSE_SECONDS, 5 * self.candidate.plan.trigger.total_seconds())
        return now - self._since <= limit

    def _aim(self) -> dict[str, Reached]:
        """Where the other is now; in an input that it does not have, the end of what there is."""
        inputs = input_positions(self.candidate.plan, self.new.project.context)
        try:
            at = _reached(inputs, self._current)
            if not at:
                return {}
            missing = {name: known.measure(None) for name, known in inputs.items() if name not in at}
        finally:
            for known in inputs.values():
                known.close()
        ends = {
            name: {f"{one.topic}:{one.partition}" if one.counts_records else one.topic: (one.end,) for one in splits}
            for name, splits in missing.items()
        }
        return {**at, **ends}

    def _reached(self, generation: Generation) -> dict[str, Reached]:
        return _reached(self._inputs, generation)

    def _hold(self) -> None:
        deadline = time.monotonic() + _BATCH_SECONDS
        self._work = ask(lambda: stop_flow(self.candidate, self.new, deadline))
        self._since = time.monotonic()
        self.phase = "holding"

    def _await_the_other(self) -> None:
        assert self._work is not None, "to hold a candidate is to stop it"
        if not self._work.done():
            self._since = time.monotonic()
            return
        if self.candidate.query is not None:
            self._end(self.candidate, self.new)
        at, there = self._reached(self._candidate), self._reached(self._current)
        if self._candidate.checkpoint.in_flight() or time.monotonic() - self._since > _HOLD_SECONDS:
            self._go_on_building()
        elif self._runs_on() and _is_there(there, {name: at[name] for name in at if name in there}):
            self._work, self.phase = ask(self._hand_over), "switching"

    def _runs_on(self) -> bool:
        """Whether there is somebody to take over from: not one who is just about to stop."""
        return self.run.query is not None and self.run.leaving is None

    def _go_on_building(self) -> None:
        self._work, self._aims, self.phase = None, None, "building"

    def _end(self, run: FlowRun, starter: FlowStarter) -> None:
        """Take in what an ended query has said, and let it go."""
        run.take_reports()
        run.query = None
        count_on(run, starter)

    def _switch(self) -> bool:
        """Whether it is done. Before anything is published a failure leads back to building, later to another try."""
        if self._work is None:
            if time.monotonic() >= self._not_before:
                self._work = ask(self._publish)
            return False
        if not self._work.done():
            return False
        work, self._work = self._work, None
        try:
            work.result()
            return True
        except Exception as error:
            self._failed(error if isinstance(error, ProjectError) else from_query(self.run.plan, error))
        return False

    def _failed(self, error: ProjectError) -> None:
        for run, starter in ((self.run, self.old), (self.candidate, self.new)):
            if run.query is not None:
                run.query.stop()
                self._end(run, starter)
        if not is_publishing(self._candidate):
            self.notes.add("candidate", f"the switch of {self.run.plan.name} is put off: {error.message}")
            self._go_on_building()
        elif fault_of(error, has_run=True) == "own":
            self.run.fail(error)
        else:
            self.run.degrade(error)
        self._not_before = time.monotonic() + _AGAIN_SECONDS

    def _hand_over(self) -> None:
        """All of the switch, by a side thread: nobody else looks after the two meanwhile."""
        stop_flow(self.run, self.old, time.monotonic() + _BATCH_SECONDS)
        if self._current.checkpoint.in_flight():
            raise ProjectError("switch-put-off", "the last batch of the running generation could not be finished")
        self._align()
        sides(self.candidate.plan, self._candidate.id, self.new.project.context)  # once more: there is no way back
        milestones.reach("before_switch", self.run.plan.name, 0)
        begin_publishing(self._candidate, self._current)
        self._publish()

    def _publish(self) -> None:
        publish(self.candidate.plan, self.old.state, self.new.project.context, self.new.spark)

    def _align(self) -> None:
        """Let both end at the same place, with the same windows closed."""
        there, at = self._current.checkpoint.committed(), self._candidate.checkpoint.committed()
        assert there is not None, "what has been caught up with has done a batch"
        assert at is not None, "what has caught up has done a batch"
        ends = [self._moved(end, there.ends) for end in at.ends]
        if ends != list(at.ends):
            self._plant(self.new, self.candidate, ends, self._candidate.checkpoint.next_watermark() or 0)
        marks = [one.checkpoint.next_watermark() or 0 for one in (self._current, self._candidate)]
        self._close_windows(self.old, self.run, max(marks))
        # who waits longer for late records than before must not be made to miss them
        same = _waits(self._current) == _waits(self._candidate)
        self._close_windows(self.new, self.candidate, max(marks) if same else marks[1])

    def _moved(self, end: Any, there: Sequence[Any]) -> Any:
        """The end of one source of the candidate, as far as the running generation has come in it."""
        for known in self._inputs.values():
            if end is not None and known.reached(end) is not None:
                to = [other for other in there if other is not None and known.reached(other) is not None]
                # one topic may be read twice, and one of the two readers be behind
                return (
                    known.moved(end, min(to, key=lambda one: sorted((known.reached(one) or {}).items()))) if to else end
                )
        return end

    def _close_windows(self, starter: FlowStarter, run: FlowRun, watermark_ms: int) -> None:
        done = starter.state.current(run.plan.name).checkpoint.committed()
        if run.plan.state and done is not None and done.watermark_ms < watermark_ms:
            self._plant(starter, run, done.ends, watermark_ms)

    def _plant(self, starter: FlowStarter, run: FlowRun, ends: Sequence[Any], watermark_ms: int) -> None:
        """Run one batch that ends there."""
        generation = starter.state.current(run.plan.name)
        number = generation.checkpoint.plant(ends, watermark_ms)
        run.query = replace(starter, one_batch=True).start(run.plan)
        run.query.awaitTermination(round(_BATCH_SECONDS))
        run.query.stop()
        if generation.checkpoint.in_flight():
            raise ProjectError("switch-put-off", f"batch {number} of generation {generation.id} could not be finished")


def _reached(inputs: Mapping[str, Positions], generation: Generation) -> dict[str, Reached]:
    """How far a generation is in these inputs, as far as it has them and it can be told."""
    record = generation.checkpoint.committed()
    found: dict[str, Reached] = {}
    for name, known in inputs.items():
        mine = [at for end in (record.ends if record else ()) if end is not None and (at := known.reached(end))]
        if mine:
            found[name] = {part: min(at[part] for at in mine if part in at) for at in mine for part in at}
    return found


def _is_there(at: Mapping[str, Reached], aims: Mapping[str, Reached]) -> bool:
    """Whether a reader has come that far everywhere. Where it has read nothing it is at the beginning."""
    return all(at.get(name, {}).get(part, (0,)) >= aim for name, parts in aims.items() for part, aim in parts.items())


def _waits(generation: Generation) -> Any:
    return generation.manifest.shape.get("loose", {}).get("watermarks")


def runs_of(starter: FlowStarter, plan: Plan, notes: Notes) -> list[FlowRun]:
    """The runs of a plan. A flow with a candidate runs as its current generation was defined, and the candidate beside
    it, except with `until_caught_up`: who runs a flow once does not wait for another."""
    return [_run_of(starter, plan, number, notes) for number in range(len(plan.flows))]


def _run_of(starter: FlowStarter, plan: Plan, number: int, notes: Notes) -> FlowRun:
    flow, state, project = plan.flows[number], starter.state, starter.project
    tidy_after_switch(flow, state, project.context)
    candidate = state.generations(flow.name).candidate()
    if candidate is None:
        return FlowRun(flow)
    new = replace(starter, state=state.with_candidate(flow.name), beside=True)
    if is_publishing(candidate):  # what was before will not run again, so it need not be fit to
        run = FlowRun(flow)
        run.building = Building(run, _candidate_run(flow, new), starter, new, notes)
        return run
    then = running(project, state, flow.name)
    old = replace(starter, project=then.project)
    run = FlowRun(then.flow, starter=old)
    if not starter.until_caught_up:
        run.building = Building(run, _candidate_run(flow, new), old, new, notes)
    return run


def _candidate_run(flow: FlowPlan, starter: FlowStarter) -> FlowRun:
    return FlowRun(flow, starter=starter, is_candidate=True, log=PositionLog(starter.state))
