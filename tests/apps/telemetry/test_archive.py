"""The archive of the application with files: every folder of `in/` and `out/` is a topic."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.apps.telemetry.application import Application, line

from headrace.sinks import archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_every_topic_is_archived_by_its_day(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_LONGEST_WAIT", 300.0)
    app = Application(tmp_path, archive_zone="Asia/Kolkata")
    number, text, quoted = 1_767_225_600_000, "2026-01-01T20:00:00.000Z", "1767225600000"
    app.give("telemetry.raw", [line({"mid": "a", "syncts": number}), line({"mid": "b", "@timestamp": text})])
    app.give("out/dev.telemetry.unique/0.jsonl", [line({"mid": "c", "syncts": quoted}), "no JSON at all"])
    app.run(spark, "archive")
    files = sorted((tmp_path / "archive").glob("*/dt=*/[!_.]*"))
    found = {str(file.parent.relative_to(tmp_path / "archive")): gzip.decompress(file.read_bytes()) for file in files}
    came = datetime.fromtimestamp((tmp_path / "out/dev.telemetry.unique/0.jsonl").stat().st_mtime + 19_800, UTC).date()
    assert found == {
        "dev.telemetry.raw/dt=2026-01-01": b'{"mid":"a","syncts":1767225600000}\n',
        "dev.telemetry.raw/dt=2026-01-02": b'{"mid":"b","@timestamp":"2026-01-01T20:00:00.000Z"}\n',
        "dev.telemetry.unique/dt=2026-01-01": b'{"mid":"c","syncts":"1767225600000"}\n',
        f"dev.telemetry.unique/dt={came}": b"no JSON at all\n",
    }
    marked = json.loads((tmp_path / "archive/dev.telemetry.raw/dt=2026-01-01/_SUCCESS").read_text())
    assert (marked["records"], marked["late"]) == (1, 0)
    assert not (tmp_path / f"archive/dev.telemetry.unique/dt={came}/_SUCCESS").exists()
