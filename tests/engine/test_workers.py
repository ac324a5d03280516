"""What Python workers share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_nothing_runs_beside_when_workers_are_forked() -> None:
    code = """
import os
from pathlib import Path
from headrace.engine.workers import load
load()
print(*sorted((task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()))
"""
    # Spark gives its workers one thread each
    run = subprocess.run(
        [sys.executable, "-c", code], env={"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True
    )
    assert set(run.stdout.split()) <= {"python", "python3", "jemalloc_bg_thd"}


def frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import gc

    yield pa.record_batch([[gc.get_freeze_count()]], ["objects"])


@pytest.mark.spark
def test_a_worker_does_not_look_for_garbage_in_what_was_loaded(spark: SparkSession) -> None:
    (row,) = spark.range(0, 1, 1, 1).mapInArrow(frozen, "objects bigint").collect()
    assert row.objects > 50_000
