from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.sinks.trials import Trial

from headrace.core.context import Batch, Context
from headrace.sinks.noop import NoopSink


@pytest.mark.spark
def test_every_row_is_computed(spark: Any, tmp_path: Path) -> None:
    computed = spark.sparkContext.accumulator(0)

    def count(batches: Any) -> Any:
        for batch in batches:
            computed.add(batch.num_rows)
            yield batch

    rows = spark.range(1000, numPartitions=4).mapInArrow(count, "id bigint")
    batch = Batch("flow", "g1", 0, "noop", "append", Context(tmp_path, "state"))
    NoopSink().write_batch(rows, batch)
    assert computed.value == 1000
    NoopSink().write_changes(rows, ["id"], batch)
    assert computed.value == 2000


def test_it_promises_nothing() -> None:
    assert NoopSink().guarantee == "best_effort"


def trial(request: pytest.FixtureRequest, folder: Path) -> Trial:
    return Trial(NoopSink, None)
