"""Stable ids of the sinks of a flow, and unique names of endpoints."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress

from headrace.core.capabilities import endpoint_of, sink_of_flow
from headrace.core.errors import ProjectError
from headrace.core.sink import Sink
from headrace.plan.model import SinkStep
from headrace.project.loader import Project


def sink_steps(sinks: Sequence[Sink]) -> tuple[SinkStep, ...]:
    """The sinks with ids that depend on kind and target only, not on other sinks or the order."""
    same_target = Counter((sink.kind(), sink.target) for sink in sinks)
    uses: Counter[str] = Counter()
    steps = []
    for sink in sinks:
        id_ = _name(sink, alone=same_target[(sink.kind(), sink.target)] == 1)
        uses[id_] += 1
        steps.append(SinkStep(id_ if uses[id_] == 1 else f"{id_}-{uses[id_]}", sink))
    return tuple(steps)


def _name(sink: Sink, *, alone: bool) -> str:
    """A short id that fits file names and contains no secrets."""
    if not sink.target:
        return sink.kind()
    # the label distinguishes topics of the same name in two clusters
    identity = sink.target if alone else f"{sink.target} {sink.label}"
    return f"{sink.kind()}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def repeated_endpoints(project: Project) -> Iterator[ProjectError]:
    """Endpoints that two sinks write: their rows would be undefined."""
    writers: dict[str, str] = {}
    for flow, index, name in endpoints(project):
        if name in writers:
            yield ProjectError(
                "endpoint-twice",
                f"endpoint '{name}' is written by flow '{writers[name]}' already",
                where=project.origin("flows", flow, "sinks", index),
                hint="give one of them another `name`",
            )
        writers.setdefault(name, flow)


def endpoints(project: Project) -> Iterator[tuple[str, int, str]]:
    """All endpoints: flow, index of the sink, name."""
    for flow, spec in project.spec.flows.items():
        for index, sink in enumerate(spec.sinks):
            with suppress(ProjectError):  # reported when the flow is planned
                name = endpoint_of(sink_of_flow(sink, flow))
                if name is not None:
                    yield flow, index, name
