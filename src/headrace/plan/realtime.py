"""What Spark's Real-Time Mode cannot run."""

from __future__ import annotations

from headrace.core.capabilities import RealTimeSink
from headrace.core.format import DecodesNatively
from headrace.plan.model import FlowPlan, LakeInput


def realtime_obstacles(flow: FlowPlan) -> list[str]:
    """Why Spark's Real-Time Mode cannot run this flow; nothing when it can."""
    found = []
    if flow.state:
        found.append(f"it keeps state ({', '.join(flow.state)})")
    if [isinstance(step.sink, RealTimeSink) and step.sink.realtime for step in flow.sinks] != [True]:
        found.append("it needs exactly one sink that can be written record by record (kafka, at_least_once)")
    for stream in flow.streams():
        form = stream.spec.format
        if not stream.spec.source.realtime:
            found.append(f"stream '{stream.name}' comes from '{stream.spec.source.kind()}', not from kafka")
        if stream.spec.backfill is not None:
            found.append(f"stream '{stream.name}' begins with history from {stream.spec.backfill.label}")
        if form is not None and not isinstance(form, DecodesNatively):
            found.append(
                f"format '{form.kind()}' has no native decoder, and a Python step emits nothing until the batch ends"
            )
        if form is not None and form.can_fail and stream.spec.on_error == "dead_letter":
            found.append(
                f"dead letters are kept by a Python step; set on_error of stream '{stream.name}' to skip or fail"
            )
    for step in flow.steps():
        if not step.processor.realtime:
            found.append(f"step {step.id} ({step.processor.kind()}) is not made of native expressions")
    if flow.functions:
        found.append(f"{', '.join(flow.functions)} runs in Python, which emits nothing until the batch ends")
    if any(isinstance(one, LakeInput) for one in flow.all_inputs()):
        found.append("it reads a lake table")
    return found
