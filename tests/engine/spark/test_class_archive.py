from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from headrace.engine.spark import class_archive as archive_module
from headrace.engine.spark.class_archive import class_archive, java_options, make_archive
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
    first = class_archive()
    assert first == class_archive()
    elsewhere.write_bytes(b"another jar")
    assert class_archive() != first


def test_java_is_told_of_an_archive_that_is_there(elsewhere: Path) -> None:
    assert java_options() == []
    class_archive().parent.mkdir(parents=True)
    class_archive().touch()
    assert f"-XX:SharedArchiveFile={class_archive()}" in java_options()


def test_java_starts_with_an_archive_that_does_not_fit(elsewhere: Path) -> None:
    class_archive().parent.mkdir(parents=True)
    class_archive().write_bytes(b"no archive")
    answer = subprocess.run([java_command(), *java_options(), "-version"], capture_output=True, text=True, check=True)
    assert "cds" not in answer.stdout + answer.stderr


def test_a_failure_is_told_and_harms_nobody(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_scratch: Path) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(archive_module, "_dump", fails)
    told: list[str] = []
    make_archive(told.append)
    assert "no space left" in told[-1]
    assert list(class_archive().parent.iterdir()) == []


@pytest.mark.spark
def test_spark_maps_the_archive(spark: object) -> None:
    """Made by `headrace jars`, which `make setup` calls."""
    given = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()  # type: ignore[attr-defined]
    assert f"-XX:SharedArchiveFile={class_archive()}" in list(given)
