"""Spark's Python daemon, with the libraries of the workers loaded before the workers are forked.

Spark's own daemon loads nothing: every worker imports the same libraries again and scans all their objects for garbage
after every task, which takes a tenth of a second each time, a dozen times in a small batch. Here the workers share the
loaded libraries and exclude them from garbage collection. The libraries must survive a fork: the only thread they start
belongs to an allocator, which restarts it in the child (a test counts the threads).

The send buffer of a worker is larger than the default of a Unix socket, so that worker and Spark do not wait for each
other at every piece.
"""

from __future__ import annotations

import ctypes
import gc
import socket
from contextlib import suppress
from importlib import import_module

from pyspark import daemon

MODULE = __name__
LIBRARIES = (
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

# decoding creates many small objects that live as long as an Arrow batch; Spark itself collects after every task
_GC_THRESHOLDS = (100_000, 50, 100)
# parameters of the C library's `mallopt`: free memory to keep, and the size above which a block comes from the system
_TRIM_THRESHOLD, _TRIM_BYTES = -1, 32 << 20
_MMAP_THRESHOLD, _MMAP_BYTES = -3, 8 << 20
# half an Arrow batch; the system may grant less
_SEND_BUFFER = 4 << 20


def load() -> None:
    """Import what most workers use and exclude it from garbage collection."""
    for name in LIBRARIES:
        import_module(name)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    keep_memory()


def keep_memory() -> None:
    """Keep the memory of an Arrow batch in the process: returning it after each batch costs a page fault per row."""
    with suppress(AttributeError):  # only the GNU C library has it
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _TRIM_BYTES)
        mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)


def run() -> None:
    """Run Spark's daemon, which calls `worker` in every child."""
    spark_worker = daemon.worker

    def worker(sock: socket.socket, authenticated: bool) -> int:
        if sock.family == socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        return spark_worker(sock, authenticated)

    daemon.worker = worker
    daemon.manager()


if __name__ == "__main__":
    load()
    run()
