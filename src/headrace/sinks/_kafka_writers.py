"""How many writers share a batch: decided once per generation.

A replayed batch must be shared out as it was the first time, or rows would be doubled or lost: hence the number is
kept beside the flow's checkpoint and does not follow the topic when partitions are added to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from headrace.core.context import Batch
from headrace.core.statefiles import write_atomically


def pinned_writers(batch: Batch, partitions: Callable[[], int]) -> int:
    """The number of writers of this sink in this generation; `partitions` is asked only the first time."""
    file = batch.context.state_path / "flows" / batch.flow / batch.generation / "sinks" / f"{batch.sink}.json"
    try:
        return int(json.loads(file.read_bytes())["writers"])
    except FileNotFoundError:
        writers = partitions()
    write_atomically(file, json.dumps({"writers": writers}).encode())
    return writers
