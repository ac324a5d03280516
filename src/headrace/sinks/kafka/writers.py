"""How a batch is distributed to writers: decided once per generation, if possible.

A repeated batch must be distributed as before, or rows would be doubled or lost. So the decision is stored next to the
flow's checkpoint. The number of writers by key stays when partitions are added to the topic, and once rows are shuffled
to writers they are for the rest of the generation.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

from headrace.core.context import Batch
from headrace.core.errors import ProjectError
from headrace.core.files.state_files import write_atomically
from headrace.sinks.kafka.transactions import WRITERS_PER_PARTITION


@dataclass(frozen=True)
class Sharing:
    """Who writes the rows of a batch."""

    writers: int
    """The partitions that the topic had when the generation began."""
    by_task: bool = False
    """Each task writes its own rows; else rows are brought to writers by their key."""


def pinned_sharing(
    batch: Batch, tasks: int | None, partitions: Callable[[], int], begun: Callable[[int], bool]
) -> Sharing:
    """How this sink shares the batch.

    `tasks` is the number of those that have the same rows whenever the batch runs. `partitions` is called only in the
    first batch; whether the batch was `begun`, with the number of writers, only when there are no such tasks any more.
    """
    file = batch.context.state_path / "flows" / batch.flow / batch.generation / "sinks" / f"{batch.sink}.json"
    try:
        known = Sharing(**json.loads(file.read_bytes()))
    except FileNotFoundError:
        known = None
    if known is not None and not known.by_task:
        return known
    writers = partitions() if known is None else known.writers
    wanted = Sharing(writers, by_task=tasks is not None and tasks <= writers * WRITERS_PER_PARTITION)
    if wanted == known:
        return known
    if known is not None and begun(writers):
        raise ProjectError(
            "kafka-sharing",
            f"batch {batch.batch_id} of flow '{batch.flow}' was started by tasks that no longer exist: what is "
            "left to write cannot be determined",
            hint="run the flow once more as it was, until it has finished a batch; or rewind it",
        )
    write_atomically(file, json.dumps(asdict(wanted)).encode())
    return wanted
