"""Planted bugs: an engine that loses, repeats or forgets its marks is found out, each time for the right reason."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.faults import generator
from tests.faults.scene import Scene, await_true

if TYPE_CHECKING:
    from headrace.testing.services import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.service]

LOST = "r0000777"
SEED = 5


def test_each_planted_bug_is_found(tmp_path: Path, kafka: Kafka) -> None:
    """All in one engine: each bug shows in another place, so that none can hide behind another."""
    bugs = "loss,duplicate,no_fence,no_lake_mark,no_manifest"
    scene = Scene(tmp_path, kafka, max_records=1500)
    try:
        assert scene.generate(4000, SEED).wait(300) == 0
        engine = scene.start(crash="after_sinks:1:rides", plant=bugs)
        assert await_true(engine.died, 600), engine.tail()
        assert engine.process.returncode == -9, engine.tail()
        scene.finish(plant=bugs)
        code, verdict = scene.check()
    finally:
        scene.close()
    assert code == 1
    found = {(one["invariant"], one["where"], one["what"]): one for one in verdict["violations"]}
    sinks = ("kafka", "lake", "files")
    assert found.keys() == {
        # loss
        *(("I1", f"rides {sink}", "acknowledged, not there") for sink in sinks),
        # no_fence, no_lake_mark, no_manifest: the batch that was run again is there twice
        *(("I2", f"rides {sink}", "there more than once") for sink in sinks),
        ("I4", "rides kafka", "before an earlier one of its key"),
        *(("I8", f"{flow} files", "left unfinished") for flow in ("rides", "windows")),
        # duplicate
        ("I2", "windows lake", "window more than once"),
    }
    assert all(found[("I1", f"rides {sink}", "acknowledged, not there")]["cases"] == [LOST] for sink in sinks)
    repeated = {found[("I2", f"rides {sink}", "there more than once")]["count"] for sink in sinks}
    assert len(repeated) == 1, "each sink holds the whole batch twice"
    assert 1000 < repeated.pop() <= 1500
    windows = {(e.ts // 10_000, e.key) for e in generator.events(4000, SEED) if not e.bad and e.id[0] == "r"}
    assert found[("I2", "windows lake", "window more than once")]["count"] == len(windows)
