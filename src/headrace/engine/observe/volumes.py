"""Bytes that a flow has read and written since the engine started.

Only successful tasks count. A batch that is repeated after a failure counts again, because it is read again. A source
or sink that does not count bytes is absent, not 0.
"""

from __future__ import annotations

from headrace.core.tallies.step_tally import BYTES_IN, step_counts
from headrace.core.tallies.tally import ENGINE
from headrace.plan.model import FlowPlan


def bytes_in(flow: FlowPlan) -> dict[str, int]:
    """By stream: the bytes of the values, and of the keys that are used, of decoded records.

    Streams without a format are absent, and so are real-time flows, which decode inside Spark.
    """
    if flow.spec.mode == "realtime":
        return {}
    counts = step_counts()
    decoded = [stream.name for stream in flow.streams() if stream.spec.format is not None]
    return {name: counts.get((flow.name, name, BYTES_IN), 0) for name in decoded}


def bytes_out(flow: FlowPlan) -> dict[str, int]:
    """By sink, for sinks that count bytes."""
    counts = ENGINE.bytes()
    return {step.id: counts[flow.name, step.id] for step in flow.sinks if (flow.name, step.id) in counts}
