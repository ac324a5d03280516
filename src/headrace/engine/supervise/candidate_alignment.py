"""Aligns a running generation and its candidate before the switch: same positions, same closed windows.

Both generations are stopped. So every record and every window is on exactly one side of the switch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.core.errors import ProjectError
from headrace.core.positions import Positions, Reached
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.state.generations import Generation
from headrace.engine.supervise.flow_run import FlowRun

BATCH_SECONDS = 600.0
"""The longest time that one batch may take during a switch."""


def reached_positions(inputs: Mapping[str, Positions], generation: Generation) -> dict[str, Reached]:
    """How far a generation has read each of these inputs; an input is absent if it is unknown or not read."""
    record = generation.checkpoint.committed()
    reached: dict[str, Reached] = {}
    for name, known in inputs.items():
        mine = [at for end in (record.ends if record else ()) if end is not None and (at := known.reached(end))]
        if mine:
            reached[name] = {part: min(at[part] for at in mine if part in at) for at in mine for part in at}
    return reached


def has_reached(at: Mapping[str, Reached], target: Mapping[str, Reached]) -> bool:
    """Whether a reader has reached a target everywhere. A part that it has not read counts as its beginning."""
    return all(
        at.get(name, {}).get(part, (0,)) >= position
        for name, parts in target.items()
        for part, position in parts.items()
    )


@dataclass(frozen=True)
class Alignment:
    """The two generations of a flow, each with its starter."""

    run: FlowRun
    candidate: FlowRun
    old: FlowStarter
    new: FlowStarter
    inputs: Mapping[str, Positions]
    """Of the candidate."""

    def align(self) -> None:
        """Run the batches after which both generations end at the same positions, with the same windows closed."""
        current, candidate = self.old.state.current(self.run.plan.name), self.new.state.current(self.run.plan.name)
        target, done = current.checkpoint.committed(), candidate.checkpoint.committed()
        assert target is not None, "a generation that was caught up with has committed a batch"
        assert done is not None, "a candidate that has caught up has committed a batch"
        ends = [self._moved(end, target.ends) for end in done.ends]
        if ends != list(done.ends):
            _run_batch(self.new, self.candidate, ends, candidate.checkpoint.next_watermark() or 0)
        watermarks = [generation.checkpoint.next_watermark() or 0 for generation in (current, candidate)]
        _close_windows(self.old, self.run, max(watermarks))
        # a candidate that waits longer for late records must not drop them
        same_delay = _watermark_delays(current) == _watermark_delays(candidate)
        _close_windows(self.new, self.candidate, max(watermarks) if same_delay else watermarks[1])

    def _moved(self, end: Any, target: Sequence[Any]) -> Any:
        """The end of one source of the candidate, moved to where the running generation has read it."""
        for known in self.inputs.values():
            if end is not None and known.reached(end) is not None:
                ends = [other for other in target if other is not None and known.reached(other) is not None]
                # a flow may read one topic twice; the reader that is behind counts
                slowest = min(ends, key=lambda other: sorted((known.reached(other) or {}).items()), default=None)
                return end if slowest is None else known.moved(end, slowest)
        return end


def _close_windows(starter: FlowStarter, run: FlowRun, watermark_ms: int) -> None:
    done = starter.state.current(run.plan.name).checkpoint.committed()
    if run.plan.state and done is not None and done.watermark_ms < watermark_ms:
        _run_batch(starter, run, done.ends, watermark_ms)


def _run_batch(starter: FlowStarter, run: FlowRun, ends: Sequence[Any], watermark_ms: int) -> None:
    generation = starter.state.current(run.plan.name)
    number = generation.checkpoint.plant(ends, watermark_ms)
    run.query = replace(starter, one_batch=True).start(run.plan)
    run.query.awaitTermination(round(BATCH_SECONDS))
    run.query.stop()
    if generation.checkpoint.in_flight():
        raise ProjectError("switch-put-off", f"batch {number} of generation {generation.id} did not finish")


def _watermark_delays(generation: Generation) -> Any:
    return generation.manifest.shape.get("loose", {}).get("watermarks")
