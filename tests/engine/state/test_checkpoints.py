"""Spark's own records of batches, read without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.engine.state.checkpoints import Checkpoint


def write_batch(folder: Path, batch_id: int, *ends: object, watermark: int = 0, done: bool = True) -> None:
    said = {"batchWatermarkMs": watermark, "batchTimestampMs": 1_700_000_000_000 + batch_id, "conf": {"a": "b"}}
    lines = ["v1", json.dumps(said), *("-" if end is None else json.dumps(end) for end in ends)]
    for name, text in (
        ("offsets", "\n".join(lines)),
        *([("commits", 'v1\n{"nextBatchWatermarkMs":0}')] if done else ()),
    ):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / str(batch_id)).write_text(text)


def test_nothing_is_known_before_the_first_batch(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "missing")
    assert checkpoint.planned() is None
    assert checkpoint.committed() is None
    assert not checkpoint.in_flight()


def test_the_newest_committed_batch_is_told_from_the_one_in_flight(tmp_path: Path) -> None:
    write_batch(tmp_path, 9, {"orders": {"0": 5}}, None, watermark=77)
    write_batch(tmp_path, 10, {"orders": {"0": 8}}, {"x": 1}, done=False)
    (tmp_path / "offsets" / ".10.crc").write_bytes(b"")
    checkpoint = Checkpoint(tmp_path)
    committed, planned = checkpoint.committed(), checkpoint.planned()
    assert committed is not None
    assert (committed.batch_id, committed.watermark_ms, committed.ends) == (9, 77, ({"orders": {"0": 5}}, None))
    assert planned is not None
    assert planned.batch_id == 10
    assert checkpoint.in_flight()


def test_an_unknown_form_is_not_guessed_at(tmp_path: Path) -> None:
    write_batch(tmp_path, 0, {})
    (tmp_path / "offsets" / "0").write_text("v2\n{}")
    with pytest.raises(ValueError, match="offset log"):
        Checkpoint(tmp_path).batch(0)
