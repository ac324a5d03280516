"""What Python workers share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_nothing_runs_beside_when_workers_are_forked() -> None:
    code = """
import os
from pathlib import Path
from headrace.engine.spark.workers import load
load()
print(*sorted((task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()))
"""
    # Spark gives its workers one thread each
    run = subprocess.run(
        [sys.executable, "-c", code], env={"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True
    )
    assert set(run.stdout.split()) <= {"python", "python3", "jemalloc_bg_thd"}


def test_memory_of_a_portion_is_kept_for_the_next() -> None:
    code = """
import resource, sys
from headrace.engine.spark.workers import keep_memory
if sys.argv[1] == "kept":
    keep_memory()
def portion():
    return [bytes([number % 256]) * 1000 for number in range(8000)]
portion()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    portion()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    kept, given_back = (
        int(subprocess.run([sys.executable, "-c", code, how], capture_output=True, text=True, check=True).stdout)
        for how in ("kept", "given back")
    )
    assert kept < given_back / 10


def frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import gc

    yield pa.record_batch([[gc.get_freeze_count()]], ["objects"])


@pytest.mark.usefixtures("accelerated")
@pytest.mark.spark
def test_a_worker_does_not_look_for_garbage_in_what_was_loaded(spark: SparkSession) -> None:
    (row,) = spark.range(0, 1, 1, 1).mapInArrow(frozen, "objects bigint").collect()
    assert row.objects > 50_000


def room(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What this worker's connections to Spark may have on the way."""
    import os
    import socket

    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family == socket.AF_UNIX:
                    found.append(one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))
        except OSError:
            continue
    yield pa.record_batch([found], ["room"])


@pytest.mark.usefixtures("accelerated")
@pytest.mark.spark
def test_a_worker_talks_to_spark_by_a_unix_socket_with_room(spark: SparkSession) -> None:
    rows = spark.range(0, 1, 1, 1).mapInArrow(room, "room bigint").collect()
    most = int(Path("/proc/sys/net/core/wmem_max").read_text())
    assert max(row.room for row in rows) == 2 * min(most, 4 << 20), "the system counts twice what is asked for"
