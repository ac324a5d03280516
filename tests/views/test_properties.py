"""Whatever happens to tables, a view over them is what Spark's batch query gives.

For each shape of query: random tables and random changes of them.

HEADRACE_VIEWS is the number of cases for each shape (1 by default; `full`: 40), HEADRACE_SEED begins elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.views.runs import EXAMPLES, SEED, explore
from tests.views.shapes import SHAPES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_there_are_enough_shapes() -> None:
    assert len(SHAPES) >= 60


@pytest.mark.spark
@pytest.mark.parametrize("shape", SHAPES)
def test_a_view_equals_the_batch_answer(
    spark: SparkSession, shape: str, record_property: Callable[[str, Any], None]
) -> None:
    cases = explore(spark, shape, examples=EXAMPLES)
    record_property("view cases", cases)
    record_property("view seed", SEED)
