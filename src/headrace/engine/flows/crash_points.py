"""Named moments of a batch at which a test can kill the engine. A hook for tests: nothing happens without it.

`HEADRACE_CRASH=between_sinks:3` kills the engine, as `kill -9` does, when any flow comes to that point in its batch 3;
`between_sinks:3:orders` when the flow `orders` does. Spark's own commit is not in our hands, so the moment after it is
found from outside, by the file it leaves.
"""

from __future__ import annotations

import os
import signal
from typing import Literal

Point = Literal["before_batch", "between_sinks", "after_sinks", "before_switch", "between_publishes", "published"]
"""The last three are those of a switch to a candidate, which has 0 for a batch."""


def reach(point: Point, flow: str, batch_id: int) -> None:
    """Die here, if the environment says so."""
    asked = os.environ.get("HEADRACE_CRASH")
    if asked is not None and asked in (f"{point}:{batch_id}", f"{point}:{batch_id}:{flow}"):
        crash(os.getpid())


def crash(engine: int) -> None:
    """Kill a process and all that it started: the JVM and its Python workers have process groups of their own."""
    import psutil

    process = psutil.Process(engine)
    family = [process.pid, *(child.pid for child in process.children(recursive=True))]
    for pid in (*(one for one in family if one != os.getpid()), os.getpid()):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it ended by itself meanwhile
