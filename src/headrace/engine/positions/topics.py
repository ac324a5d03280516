"""Is a topic still the one that a flow has been reading?

A topic that was deleted and made again starts its offsets anew. Spark notices only when it has fewer records than the
flow has read; later it would go on in the middle of other data.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError
from headrace.engine.positions.positions import input_positions
from headrace.engine.state.generations import Generation
from headrace.plan.model import FlowPlan


def check_topics(flow: FlowPlan, generation: Generation, context: Context) -> None:
    """Refuse topics that were made anew since the generation began; remember those it has not read before."""
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
            f"topic '{topic}' was deleted and made again since flow '{flow.name}' has read it: its positions are void",
            hint=f"begin anew with what it holds now: headrace rewind {flow.name} --to earliest",
            exit_code=Exit.CONFLICT,
        )
    if not now.keys() <= before.keys():
        generation.describe(replace(manifest, topics={**before, **now}))
