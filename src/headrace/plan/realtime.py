"""What Spark's Real-Time Mode cannot run."""

from __future__ import annotations

from headrace.core.capabilities import RealTimeSink
from headrace.core.format import DecodesNatively
from headrace.plan.model import FlowPlan, LakeInput


def realtime_obstacles(flow: FlowPlan) -> list[str]:
    """Why Spark's Real-Time Mode cannot run this flow; empty if it can."""
    obstacles = []
    if flow.state:
        obstacles.append(f"it keeps state ({', '.join(flow.state)})")
    if [isinstance(step.sink, RealTimeSink) and step.sink.realtime for step in flow.sinks] != [True]:
        obstacles.append("it needs exactly one sink that can be written record by record (kafka, at_least_once)")
    for stream in flow.streams():
        form = stream.spec.format
        if not stream.spec.source.realtime:
            obstacles.append(f"stream '{stream.name}' comes from '{stream.spec.source.kind()}', not from kafka")
        if stream.spec.backfill is not None:
            obstacles.append(f"stream '{stream.name}' begins with history from {stream.spec.backfill.label}")
        if form is not None and not isinstance(form, DecodesNatively):
            obstacles.append(
                f"format '{form.kind()}' has no native decoder, and a Python stage emits nothing until the batch ends"
            )
        if form is not None and form.can_fail and stream.spec.on_error == "dead_letter":
            obstacles.append(
                f"a Python stage writes dead letters; set on_error of stream '{stream.name}' to skip or fail"
            )
    for step in flow.steps():
        if not step.processor.realtime:
            obstacles.append(f"step {step.id} ({step.processor.kind()}) does not consist of native expressions")
    if flow.functions:
        obstacles.append(f"{', '.join(flow.functions)} runs in Python, which emits nothing until the batch ends")
    if any(isinstance(input_, LakeInput) for input_ in flow.all_inputs()):
        obstacles.append("it reads a lake table")
    return obstacles
