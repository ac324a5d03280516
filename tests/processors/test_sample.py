from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.processors.steps import Around

from headrace.core.errors import ProjectError
from headrace.core.schema import from_ddl
from headrace.processors.sample import Sample, last_hash

KEYS = 4000
ROWS = f"SELECT id AS n, cast(id % {KEYS} AS string) AS user, struct(id % {KEYS} AS id) AS o FROM range({3 * KEYS})"
SHARES = st.floats(0, 1, exclude_min=True)
SEEDS = st.integers(0, 2**63 - 1)
FEW = settings(max_examples=12, deadline=None)


@given(SHARES, SHARES)
@example(1e-300, 1.0)
def test_a_larger_share_keeps_all_hashes_of_a_smaller_one(one: float, other: float) -> None:
    small, large = sorted([one, other])
    assert -(2**63) <= last_hash(small) <= last_hash(large) < 2**63
    # one in 2**64 is the least that can be kept, and a float has 53 bits
    kept = (last_hash(large) + 2**63 + 1) / 2**64
    assert kept == pytest.approx(large, rel=1e-15, abs=2**-64)


@pytest.mark.parametrize(
    "options", [{"share": 0}, {"share": 1.1}, {"share": 0.5, "by": []}, {"share": 0.5, "seed": -1}]
)
def test_other_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Sample(**options)


@pytest.mark.parametrize(
    ("by", "columns", "code"),
    [(["usr"], "user string", "unknown-column"), (["o.x"], "o struct<id: int>", "unknown-column"),
     (["m"], "m map<string, int>", "step-type"), (None, "n int, o array<struct<m: map<int, int>>>", "step-type")],
)  # fmt: skip
def test_keys_without_a_hash_are_refused(by: list[str] | None, columns: str, code: str) -> None:
    with pytest.raises(ProjectError) as caught:
        Sample(share=0.5, by=by).output(from_ddl(columns))
    assert caught.value.code == code


def test_columns_and_label() -> None:
    schema = from_ddl("user string, m map<string, int>")
    step = Sample(share=0.01, by=["user"])
    assert step.output(schema) == schema
    assert (step.label, step.realtime) == ("sample 1% by user", True)
    assert step.uses(frozenset({"m"})) == {"m", "user"}
    assert Sample(share=0.01).uses(frozenset({"m"})) is None, "the hash of a row depends on all its columns"


class Kept:
    """Samples of the same rows."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.frame, self.around = spark.sql(ROWS).cache(), Around(folder)

    def __call__(self, step: Sample, column: str = "n") -> set[Any]:
        rows = step.apply(self.frame, self.around.at()).select(column)
        return {row[0] for row in rows.collect()}


@pytest.fixture(scope="module")
def kept(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return Kept(spark, tmp_path_factory.mktemp("sample"))


@pytest.mark.spark
@FEW
@given(SHARES, SHARES, SEEDS)
def test_the_choice_is_stable_monotone_and_near_the_share(kept: Kept, one: float, other: float, seed: int) -> None:
    small, large = (kept(Sample(share=share, by=["user"], seed=seed), "user") for share in sorted([one, other]))
    assert small <= large
    assert small == kept(Sample(share=min(one, other), by=["user"], seed=seed), "user")
    # six standard deviations of so many independent choices
    for share, found in ((min(one, other), small), (max(one, other), large)):
        assert abs(len(found) - share * KEYS) <= 6 * (share * (1 - share) * KEYS) ** 0.5 + 1


@pytest.mark.spark
@FEW
@given(SHARES, SEEDS)
def test_all_rows_of_a_key_are_kept_or_dropped_together(kept: Kept, share: float, seed: int) -> None:
    found = kept(Sample(share=share, by=["o.id"], seed=seed))
    assert found == {n for n in range(3 * KEYS) if n % KEYS in {one % KEYS for one in found}}


@pytest.mark.spark
def test_seeds_and_whole_rows_choose_independently(kept: Kept) -> None:
    first, second = (kept(Sample(share=0.5, by=["user"], seed=seed), "user") for seed in (0, 1))
    assert len(first & second) == pytest.approx(KEYS / 4, rel=0.15)
    rows = kept(Sample(share=0.5))
    assert len(rows) == pytest.approx(3 * KEYS / 2, rel=0.05)
    assert len({n % KEYS for n in rows}) > 0.8 * KEYS, "rows of one key are chosen apart"
    assert kept(Sample(share=1.0)) == set(range(3 * KEYS))


@pytest.mark.spark
def test_no_python_runs(kept: Kept) -> None:
    plan = Sample(share=0.1, by=["user"]).apply(kept.frame, kept.around.at())._jdf.queryExecution().toString()
    assert "xxhash64" in plan
    assert "Python" not in plan
    assert "InArrow" not in plan
