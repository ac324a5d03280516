"""Names for the sinks of a flow that batch marks can rely on."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from headrace.core.sink import Sink
from headrace.plan.model import SinkStep


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
