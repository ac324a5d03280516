"""How many cases of which shape are tried, from which seed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from zlib import crc32

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from tests.views.generated_views import Case, cases
from tests.views.oracle import check
from tests.views.shapes import COMPARISONS, filled, letters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ASKED = os.environ.get("HEADRACE_VIEWS", "1")
EXAMPLES = 40 if _ASKED == "full" else int(_ASKED)
SEED = int(os.environ.get("HEADRACE_SEED", "0"))


def explore(spark: SparkSession, shape: str, examples: int, shrink: bool = True) -> int:
    """Try a shape on so many cases, the same ones for the same seed; an AssertionError has the smallest that fails."""
    ran = 0
    phases = [Phase.generate, *([Phase.shrink] if shrink else [])]

    @seed(crc32(f"{shape} {SEED}".encode()))
    @settings(
        max_examples=examples,
        phases=phases,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,  # the error says it all
    )
    @given(cases(letters(shape)), st.sampled_from(COMPARISONS), st.integers(0, 2), st.booleans())
    def try_one(case: Case, cmp: str, lit: int, shout: bool) -> None:
        nonlocal ran
        ran += 1
        sql, answer = filled(shape, case.tables, cmp, lit, shout)
        check(spark, sql, case, answer)

    try_one()
    return ran
