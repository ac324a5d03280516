"""Names for the sinks of a flow that batch marks can rely on, and endpoints that have one name."""

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
    """The sinks with ids that stay the same when others come, go or change places: kind and target."""
    alike = Counter((sink.kind(), sink.target) for sink in sinks)
    seen: Counter[str] = Counter()
    steps = []
    for sink in sinks:
        made = _name(sink, alone=alike[(sink.kind(), sink.target)] == 1)
        seen[made] += 1
        steps.append(SinkStep(made if seen[made] == 1 else f"{made}-{seen[made]}", sink))
    return tuple(steps)


def _name(sink: Sink, *, alone: bool) -> str:
    """Short, fit for file names, and silent about what may be secret."""
    if not sink.target:
        return sink.kind()
    # two topics of one name are told apart by their clusters
    identity = sink.target if alone else f"{sink.target} {sink.label}"
    return f"{sink.kind()}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def repeated_endpoints(project: Project) -> Iterator[ProjectError]:
    """Endpoints that two sinks write: whose rows such a one had would be a matter of chance."""
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
    """All endpoints: the flow, the number of the sink, and the name."""
    for flow, spec in project.spec.flows.items():
        for index, sink in enumerate(spec.sinks):
            with suppress(ProjectError):  # said when the flow is planned
                name = endpoint_of(sink_of_flow(sink, flow))
                if name is not None:
                    yield flow, index, name
