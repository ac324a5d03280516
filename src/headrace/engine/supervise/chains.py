"""The order of flows that read what other flows write, in a run until caught up.

A flow starts after all flows that feed it have ended, so it reads their last row. Flows that feed each other in a cycle
cannot wait for each other: they start together, and each runs again as long as another of the cycle has written since
it started.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.engine.flows.flow import FlowStarter
from headrace.engine.spark.progress import output_rows
from headrace.engine.supervise.flow_run import FlowRun
from headrace.plan.feeds import flow_feeds, flow_waits
from headrace.plan.model import Plan


@dataclass
class FeedChain:
    """Which flow feeds which, and when each flow started and wrote, on the monotonic clock."""

    waits: Mapping[str, frozenset[str]]
    """By flow, the flows that it waits for."""
    cycles: Mapping[str, frozenset[str]]
    """By flow, the flows that feed it and that it feeds in turn."""
    _started: dict[str, float] = field(default_factory=dict)
    _wrote: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def of(plan: Plan, starter: FlowStarter) -> FeedChain:
        links = flow_feeds(plan, starter.project.context)
        waits_for = flow_waits(links)
        return FeedChain(waits_for, {flow: writers - waits_for[flow] for flow, writers in links.items()})

    def note_start(self, flow: str) -> None:
        """The flow reads its inputs from now on."""
        self._started[flow] = time.monotonic()

    def note_batches(self, flow: str, reports: Iterable[Mapping[str, Any]]) -> None:
        """A batch that had rows may have written some."""
        if any(_rows(report) for report in reports):
            self._wrote[flow] = time.monotonic()

    def is_waiting(self, flow: str, runs: Sequence[FlowRun]) -> bool:
        """Whether a flow that feeds this one has not ended yet, or will run again."""
        feeding = [run for run in runs if run.plan.name in self.waits.get(flow, ())]
        return any(not run.done or self.must_rerun(run) for run in feeding)

    def must_rerun(self, run: FlowRun) -> bool:
        """Whether another flow of its cycle has written since this flow, which ended without failure, started."""
        if run.error is not None or run.state != "stopped" or run.stop_order is not None:
            return False
        started = self._started.get(run.plan.name)
        writers = self.cycles.get(run.plan.name, ())
        return started is not None and any(self._wrote.get(writer, 0.0) > started for writer in writers)


def _rows(report: Mapping[str, Any]) -> int:
    return int(report["numInputRows"] or 0) + (output_rows(report) or 0)
