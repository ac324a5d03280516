"""Positions in Delta tables are versions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.core.context import Context
from headrace.core.positions import (
    AtOffset,
    AtTime,
    Current,
    Earliest,
    Explicit,
    Latest,
    Position,
    ShiftBy,
    SplitScope,
    Target,
)
from headrace.sources.lake import LakeSource


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """A table with the versions 0 to 3, of which the last only merged files."""
    for number in range(3):
        write_deltalake(str(tmp_path / "t"), pa.table({"n": [number]}), mode="append")
    DeltaTable(str(tmp_path / "t")).optimize.compact()
    return Context(tmp_path, "state")


@pytest.mark.parametrize(
    ("target", "current", "version"),
    [
        (Earliest(), {"version": 2}, None),
        (Latest(), {"version": 1}, 3),
        (Current(), {"version": 2}, 2),
        (Current(), None, None),
        (AtOffset(1), None, 1),
        (AtOffset(99), None, 3),
        (ShiftBy(-1), {"version": 2}, 1),
        (Explicit({"t": {0: 2}}), None, 2),
        (Explicit({"t": {0: -1}}), None, 3),
        (AtTime(datetime(2020, 1, 1, tzinfo=UTC)), None, 0),
        (AtTime(datetime.now(UTC) + timedelta(days=1)), None, 3),
    ],
)
def test_targets_are_versions(context: Context, target: Target, current: Position | None, version: int | None) -> None:
    known = LakeSource(path="t").positions(context)
    assert known.resolve(target, current, SplitScope()) == {"version": version}


def test_lag_is_told_in_seconds_only_and_upkeep_is_nothing_to_wait_for(context: Context) -> None:
    known = LakeSource(path="t").positions(context)
    (behind,) = known.measure({"version": 1})
    assert (behind.position, behind.end, behind.lag) == (1, 3, None)
    assert behind.lag_s is not None
    assert 0 <= behind.lag_s < 600
    (done,) = known.measure({"version": 3})
    assert (done.lag, done.lag_s) == (0, 0.0)


def test_a_record_of_spark_is_told_by_the_id_of_the_table(context: Context, tmp_path: Path) -> None:
    known = LakeSource(path="t").positions(context)
    id = DeltaTable(str(tmp_path / "t")).metadata().id
    end = {"sourceVersion": 1, "reservoirId": str(id), "reservoirVersion": 2, "index": -1, "isStartingVersion": False}
    assert known.of_checkpoint(end) == {"version": 2}
    assert known.of_checkpoint({**end, "isStartingVersion": True}) == {"version": None}
    assert known.of_checkpoint({**end, "reservoirId": "another"}) is None
    assert known.of_checkpoint({"logOffset": 1}) is None


def test_delta_begins_at_a_start_that_is_not_there_yet() -> None:
    source = LakeSource(path="t", start=7)
    assert source.stream_options()["startingVersion"] == "7"
    assert source.stream_options({"version": 3}, newest=5)["startingVersion"] == "3"
    assert source.stream_options({"version": 6}, newest=5)["startingVersion"] == "latest"
    assert "startingVersion" not in source.stream_options({"version": None}, newest=5)
