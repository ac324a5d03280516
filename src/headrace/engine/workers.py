"""Spark's Python daemon, with what workers need loaded before they are forked.

Spark's own loads nothing, so every worker imports the same libraries once more, and goes through all their objects for
garbage after every task: a tenth of a second each time, of which a small batch takes a dozen. Here the workers share
what was loaded, and do not look at it again. That needs libraries that may be forked: the one thread they start, that
of an allocator, is begun anew in the child by the allocator itself (a test counts them).
"""

from __future__ import annotations

import gc
from importlib import import_module

MODULE = __name__
LOADED = (
    "pandas",
    "pyarrow.compute",
    "pyspark.worker",
    "pyspark.sql.streaming.stateful_processor_api_client",
    "headrace.engine.decode",
    "headrace.processors._keyed",
    "headrace.sinks.kafka",
)


def load() -> None:
    """What most workers use."""
    for name in LOADED:
        import_module(name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    from pyspark.daemon import manager

    load()
    manager()
