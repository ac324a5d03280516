"""The class archive: Spark's classes as Java holds them after loading, in a file that every start maps.

It halves the start time. An archive fits one Java, one PySpark and one folder of jars. Without an archive, or with one
that does not fit, Java loads classes from the jars.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from headrace.engine.spark.jars import Report, engine_jars, jar_dir, java_command, pyspark_home
from headrace.engine.spark.java_helpers import helpers_jar

ARCHIVE_NAME = "classes.jsa"
_FOLDER = "classes"
_TIMEOUT = 600


def archive_path() -> Path:
    """The path for the current Java and jars; the file may not exist."""
    java = Path(java_command()).resolve()
    jars = [*engine_jars(), *sorted((pyspark_home() / "jars").glob("*.jar"))]
    if helpers_jar().is_file():
        jars.append(helpers_jar())
    files = [f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in (java, *jars)]
    return jar_dir() / _FOLDER / f"{hashlib.sha256(os.linesep.join(files).encode()).hexdigest()[:16]}.jsa"


def archive_options() -> list[str]:
    """The Java options that map the archive; empty when it does not exist."""
    with suppress(OSError):
        archive = archive_path()
        if archive.is_file():
            # a Java without class archives, or with one that does not fit, starts without it
            return [
                "-XX:+IgnoreUnrecognizedVMOptions",
                f"-XX:SharedArchiveFile={archive}",
                "-Xlog:cds=off",
                "-Xlog:cds+dynamic=off",
            ]
    return []


def build_archive(report: Report) -> None:
    """Build the archive unless it exists. A failure is only reported: Spark runs without the archive."""
    archive = archive_path()
    if archive.is_file():
        return
    report("building the class archive, which halves the start time of Spark")
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
            _dump(Path(scratch))
            for old in archive.parent.glob("*.jsa"):
                old.unlink()
            (Path(scratch) / ARCHIVE_NAME).rename(archive)
    except (OSError, subprocess.SubprocessError) as error:
        report(f"the class archive could not be built, so Spark starts more slowly: {str(error)[:300]}")


def _dump(scratch: Path) -> None:
    command = [sys.executable, "-m", "headrace.engine.spark.archive_workload", str(scratch)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    if not (scratch / ARCHIVE_NAME).is_file():
        raise OSError((result.stderr.strip().splitlines() or ["Java wrote no file"])[-1])
