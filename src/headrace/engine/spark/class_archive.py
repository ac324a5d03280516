"""Spark's classes as Java has them once they are loaded, kept in a file that every further start maps: half the time.

The file fits one Java, one PySpark and one place of the jars. Where there is none, or it does not fit any more, Java
loads its classes as ever.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.engine.spark.jars import Report, engine_jars, jar_dir, java_command, pyspark_home
from headrace.engine.spark.java_helpers import own_jar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FOLDER = "classes"
_PATIENCE = 600


def class_archive() -> Path:
    """Where the file is kept, whether there is one or not."""
    java = Path(java_command()).resolve()
    jars = [*engine_jars(), *sorted((pyspark_home() / "jars").glob("*.jar"))]
    if own_jar().is_file():
        jars.append(own_jar())
    known = [f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in (java, *jars)]
    return jar_dir() / _FOLDER / f"{hashlib.sha256(os.linesep.join(known).encode()).hexdigest()[:16]}.jsa"


def java_options() -> list[str]:
    """What tells Java to map the file."""
    with suppress(OSError):
        archive = class_archive()
        if archive.is_file():
            # a Java that knows no such file, or finds that this one does not fit, goes on without
            return [
                "-XX:+IgnoreUnrecognizedVMOptions",
                f"-XX:SharedArchiveFile={archive}",
                "-Xlog:cds=off",
                "-Xlog:cds+dynamic=off",
            ]
    return []


def make_archive(report: Report) -> None:
    """Make the file, unless it is there: Spark is started once and put through what flows do. A failure is told, and
    harms nobody."""
    archive = class_archive()
    if archive.is_file():
        return
    report("noting Spark's classes down, so that it starts in half the time")
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
            _dump(Path(scratch))
            for old in archive.parent.glob("*.jsa"):
                old.unlink()
            (Path(scratch) / "classes.jsa").rename(archive)
    except (OSError, subprocess.SubprocessError) as error:
        report(f"that failed, and Spark starts as ever: {str(error)[:300]}")


def _dump(scratch: Path) -> None:
    command = [sys.executable, "-m", "headrace.engine.spark.class_archive", str(scratch)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    if not (scratch / "classes.jsa").is_file():
        raise OSError((answer.stderr.strip().splitlines() or ["Java wrote no file"])[-1])


def _exercise(scratch: Path) -> None:
    """What flows do, in small: the classes that this loads are those of the file."""
    from headrace.engine.spark.session import start_session, stop_session
    from headrace.project.model import SparkSpec

    dump = f"-XX:ArchiveClassesAtExit={scratch / 'classes.jsa'}"
    conf = {"spark.driver.extraJavaOptions": dump, "spark.sql.shuffle.partitions": "1"}
    spark = start_session(SparkSpec(master="local[1]", conf=conf), "classes", scratch)
    files, table = str(scratch / "files"), str(scratch / "table")
    rows = spark.range(100).selectExpr("id", "id % 3 AS k", "cast(id AS string) AS t", "timestamp_seconds(id) AS at")
    rows.write.parquet(files)
    rows.write.format("delta").save(table)
    rows.mapInArrow(lambda batches: batches, "id bigint, k bigint, t string, at timestamp").toArrow()
    stream = spark.readStream.schema(rows.schema).parquet(files).withWatermark("at", "1 second")
    counted = stream.groupBy("k", "at").count().dropDuplicates()
    writer = counted.writeStream.foreachBatch(_collect)
    query = writer.option("checkpointLocation", str(scratch / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.read.format("delta").load(table).join(rows, "id").groupBy(rows["k"]).count().collect()
    java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    stop_session(spark)
    # the file is written while Java ends, which it does when nobody writes to it any more
    java.stdin.close()
    java.wait(_PATIENCE)
    for left in ("files", "table", "checkpoint"):
        shutil.rmtree(scratch / left, ignore_errors=True)


def _collect(batch: DataFrame, _number: int) -> None:
    batch.collect()


if __name__ == "__main__":
    _exercise(Path(sys.argv[1]))
