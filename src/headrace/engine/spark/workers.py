"""Spark's Python daemon, with what workers need loaded before they are forked.

Spark's own loads nothing, so every worker imports the same libraries once more, and goes through all their objects for
garbage after every task: a tenth of a second each time, of which a small batch takes a dozen. Here the workers share
what was loaded, and do not look at it again. That needs libraries that may be forked: the one thread they start, that
of an allocator, is begun anew in the child by the allocator itself (a test counts them).

A worker may have more on its way to Spark than a Unix socket holds by default, so that neither waits for every piece.
"""

from __future__ import annotations

import ctypes
import gc
import socket
from contextlib import suppress
from importlib import import_module

from pyspark import daemon

MODULE = __name__
LOADED = (
    "pandas",
    "pyarrow.compute",
    "pyspark.worker",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.streaming.stateful_processor_api_client",
    "pyspark.sql.streaming.transform_with_state_driver_worker",
    "headrace.engine.inputs.decode",
    "headrace.engine.tables.table_feed",
    "headrace.processors._keyed.keyed_filter",
    "headrace.sinks.kafka",
)

_SELDOM = (100_000, 50, 100)
# of the C library's `mallopt`: how much that is free it keeps, and from which size on it asks the system each time
_KEPT, _KEPT_BYTES = -1, 32 << 20
_ASKED_FOR, _ASKED_FOR_BYTES = -3, 8 << 20
# as far as the system allows; half a portion of rows
_ON_THE_WAY = 4 << 20


def load() -> None:
    """What most workers use."""
    for name in LOADED:
        import_module(name)
    gc.collect()
    gc.freeze()
    # documents are taken apart into many small objects that live as long as a portion; Spark collects after every task
    gc.set_threshold(*_SELDOM)
    keep_memory()


def keep_memory() -> None:
    """Let a process keep what a portion of rows takes: given back after each, it costs a page fault per row again."""
    with suppress(AttributeError):  # only the GNU C library has it
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_KEPT, _KEPT_BYTES)
        mallopt(_ASKED_FOR, _ASKED_FOR_BYTES)


def run() -> None:
    """Spark's daemon, which calls `worker` in every child."""
    work = daemon.worker

    def worker(sock: socket.socket, authenticated: bool) -> int:
        if sock.family == socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ON_THE_WAY)
        return work(sock, authenticated)

    daemon.worker = worker
    daemon.manager()


if __name__ == "__main__":
    load()
    run()
