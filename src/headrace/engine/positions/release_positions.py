"""Releases records that every flow of the project has read, in sources that keep records until then."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.core.positions import Position
from headrace.core.source import positions_of
from headrace.engine.positions.positions import committed_positions
from headrace.engine.state.generations import Generation
from headrace.engine.state.state import StateDir
from headrace.plan.model import FlowPlan
from headrace.plan.planner import make_plan
from headrace.project.loader import Project

_EVERY_SECONDS = 5.0


@dataclass
class PositionReleaser:
    """Observer that reports to such sources, every few seconds with a batch, how far the flows have read.

    All flows of the project count, also those that do not run: records that one of them has not read are kept.
    """

    project: Project
    state: StateDir
    every_seconds: float = _EVERY_SECONDS
    _due: float = 0.0
    _flows: list[FlowPlan] = field(default_factory=list)

    @staticmethod
    def is_needed(project: Project) -> bool:
        """Whether a stream of the project has a source that keeps records until they are released."""
        return any(positions_of(stream.source, project.context).releases for stream in project.spec.streams.values())

    def batch_done(self, flow: FlowPlan, progress: Mapping[str, Any]) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self.every_seconds
            self.release()

    def close(self) -> None:
        self.release()

    def release(self) -> None:
        self._flows = self._flows or list(make_plan(self.project, ()).flows)
        for name, spec in self.project.spec.streams.items():
            known = positions_of(spec.source, self.project.context)
            readers = [flow for flow in self._flows if any(stream.name == name for stream in flow.streams())]
            if known.releases and readers:
                known.release([at for flow in readers for at in self._reached(flow, name)])
            known.close()

    def _reached(self, flow: FlowPlan, stream: str) -> Iterator[Position | None]:
        """The position of each generation that continues; None for a flow that has not started."""
        generations = self.state.generations(flow.name)
        inputs = {stream: positions_of(self.project.spec.streams[stream].source, self.project.context)}
        active: list[Generation | None] = [generations.current(), *filter(None, [generations.candidate()])]
        for generation in active:
            yield None if generation is None else committed_positions(inputs, generation)[stream]
