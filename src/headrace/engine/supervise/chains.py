"""Flows that read what others write, when they run until they have caught up: who waits for whom, and who runs again.

A flow begins when all that feed it have ended, so it reads their last row. Flows that feed each other in a circle
cannot wait: they begin together, and one runs again as long as another of them has written since it began.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.engine.flows.flow import FlowStarter
from headrace.engine.spark.progress import rows_given
from headrace.engine.supervise.flow_run import FlowRun
from headrace.plan.feeds import flow_feeds, flow_waits
from headrace.plan.model import Plan


@dataclass
class Chain:
    """What feeds what, and when each flow began and wrote, on the monotonic clock."""

    waits: Mapping[str, frozenset[str]]
    circles: Mapping[str, frozenset[str]]
    """For each flow those that feed it and that it feeds in turn."""
    _began: dict[str, float] = field(default_factory=dict)
    _wrote: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def of(plan: Plan, starter: FlowStarter) -> Chain:
        """The chain of the flows of a plan."""
        links = flow_feeds(plan, starter.project.context)
        behind = flow_waits(links)
        return Chain(behind, {flow: writers - behind[flow] for flow, writers in links.items()})

    def begins(self, flow: str) -> None:
        """Note that a flow looks at its inputs from now on."""
        self._began[flow] = time.monotonic()

    def takes(self, flow: str, reports: Iterable[Mapping[str, Any]]) -> None:
        """Take in reports of batches: one that had rows may have written some."""
        if any(_rows(report) for report in reports):
            self._wrote[flow] = time.monotonic()

    def is_waiting(self, flow: str, runs: Sequence[FlowRun]) -> bool:
        """Whether a flow that feeds this one has not ended yet, or will run again."""
        behind = [run for run in runs if run.plan.name in self.waits.get(flow, ())]
        return any(not run.done or self.is_fed(run) for run in behind)

    def is_fed(self, run: FlowRun) -> bool:
        """Whether a flow that has ended well must run again, since one of its circle has written meanwhile."""
        if run.error is not None or run.state != "stopped" or run.stop is not None:
            return False
        began = self._began.get(run.plan.name)
        writers = self.circles.get(run.plan.name, ())
        return began is not None and any(self._wrote.get(writer, 0.0) > began for writer in writers)


def _rows(report: Mapping[str, Any]) -> int:
    return int(report["numInputRows"] or 0) + (rows_given(report) or 0)
