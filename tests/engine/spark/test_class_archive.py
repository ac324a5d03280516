from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from headrace.engine.spark import class_archive as archive_module
from headrace.engine.spark.class_archive import archive_options, archive_path, build_archive
from headrace.engine.spark.jars import java_command


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Jars that are as if they had just been fetched, and no archive."""
    jar = tmp_path / "engine.jar"
    jar.write_bytes(b"jar")
    monkeypatch.setenv("HEADRACE_JARS", str(tmp_path / "kept"))
    monkeypatch.setattr(archive_module, "engine_jars", lambda: [jar])
    return jar


def test_an_archive_is_for_the_jars_it_was_made_of(elsewhere: Path) -> None:
    first = archive_path()
    assert first == archive_path()
    elsewhere.write_bytes(b"another jar")
    assert archive_path() != first


def test_java_is_told_of_an_archive_that_is_there(elsewhere: Path) -> None:
    assert archive_options() == []
    archive_path().parent.mkdir(parents=True)
    archive_path().touch()
    assert f"-XX:SharedArchiveFile={archive_path()}" in archive_options()


def test_java_starts_with_an_archive_that_does_not_fit(elsewhere: Path) -> None:
    archive_path().parent.mkdir(parents=True)
    archive_path().write_bytes(b"no archive")
    answer = subprocess.run(
        [java_command(), *archive_options(), "-version"], capture_output=True, text=True, check=True
    )
    assert "cds" not in answer.stdout + answer.stderr


def test_a_failure_is_told_and_harms_nobody(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_scratch: Path) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(archive_module, "_dump", fails)
    told: list[str] = []
    build_archive(told.append)
    assert "no space left" in told[-1]
    assert list(archive_path().parent.iterdir()) == []


@pytest.mark.usefixtures("accelerated")
@pytest.mark.spark
def test_spark_maps_the_archive(spark: object) -> None:
    """Made by `headrace jars`, which `make setup` calls."""
    given = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()  # type: ignore[attr-defined]
    assert f"-XX:SharedArchiveFile={archive_path()}" in list(given)
