"""How many bytes a flow has read and written since the engine started.

They come from tasks that have ended well: a batch that is run again after a failure is counted again, since it was read
again. What nobody counts is absent, never 0.
"""

from __future__ import annotations

from headrace.core.tallies.step_tally import BYTES_IN, step_counts
from headrace.core.tallies.tally import ENGINE
from headrace.plan.model import FlowPlan


def bytes_in(flow: FlowPlan) -> dict[str, int]:
    """By stream: the values, and the keys that are read, of the records given to its decoder.

    Streams without a format have none, and a real-time flow decodes inside of Spark.
    """
    if flow.spec.mode == "realtime":
        return {}
    counts = step_counts()
    decoded = [stream.name for stream in flow.streams() if stream.spec.format is not None]
    return {name: counts.get((flow.name, name, BYTES_IN), 0) for name in decoded}


def bytes_out(flow: FlowPlan) -> dict[str, int]:
    """By sink, for those that know."""
    counts = ENGINE.bytes()
    return {step.id: counts[flow.name, step.id] for step in flow.sinks if (flow.name, step.id) in counts}
