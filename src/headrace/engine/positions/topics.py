"""Detects topics that were deleted and created again.

The offsets of a new topic start at 0. Spark notices this only while the topic has fewer records than the flow has read;
later it would continue in the middle of other data.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError
from headrace.engine.positions.positions import input_positions
from headrace.engine.state.generations import Generation
from headrace.plan.model import FlowPlan


def check_topics(flow: FlowPlan, generation: Generation, context: Context) -> None:
    """Refuse topics that were recreated since the generation read them; store the ids of new topics."""
    inputs = input_positions(flow, context)
    try:
        now = {f"{name}/{topic}": id for name, known in inputs.items() for topic, id in known.identities().items()}
    finally:
        for known in inputs.values():
            known.close()
    manifest = generation.manifest
    before = manifest.topics
    recreated = sorted(key for key, id in now.items() if before.get(key, id) != id)
    if recreated:
        topic = recreated[0].partition("/")[2]
        raise ProjectError(
            "topic-recreated",
            f"topic '{topic}' was deleted and created again since flow '{flow.name}' read it: positions are invalid",
            hint=f"start over with the records of the new topic: headrace rewind {flow.name} --to earliest",
            exit_code=Exit.CONFLICT,
        )
    if not now.keys() <= before.keys():
        generation.describe(replace(manifest, topics={**before, **now}))
