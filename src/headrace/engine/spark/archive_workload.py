"""The workload that loads the classes of the class archive: a small sample of what flows do.

`class_archive` runs this module in a process of its own, because Java writes the archive when it exits.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from headrace.engine.spark.class_archive import ARCHIVE_NAME
from headrace.engine.spark.session import start_session, stop_session
from headrace.project.model import SparkSpec

_TIMEOUT = 600


def main(scratch: Path) -> None:
    dump = f"-XX:ArchiveClassesAtExit={scratch / ARCHIVE_NAME}"
    conf = {"spark.driver.extraJavaOptions": dump, "spark.sql.shuffle.partitions": "1"}
    spark = start_session(SparkSpec(master="local[1]", conf=conf), "classes", scratch)
    _load_classes(spark, scratch)
    java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    stop_session(spark)
    # Java exits, and writes the archive, when its standard input is closed
    java.stdin.close()
    java.wait(_TIMEOUT)
    for folder in ("files", "table", "checkpoint"):
        shutil.rmtree(scratch / folder, ignore_errors=True)


def _load_classes(spark: SparkSession, scratch: Path) -> None:
    files, table = str(scratch / "files"), str(scratch / "table")
    rows = spark.range(100).selectExpr("id", "id % 3 AS k", "cast(id AS string) AS t", "timestamp_seconds(id) AS at")
    rows.write.parquet(files)
    rows.write.format("delta").save(table)
    rows.mapInArrow(lambda batches: batches, "id bigint, k bigint, t string, at timestamp").toArrow()
    stream = spark.readStream.schema(rows.schema).parquet(files).withWatermark("at", "1 second")
    counts = stream.groupBy("k", "at").count().dropDuplicates()
    writer = counts.writeStream.foreachBatch(_collect)
    query = writer.option("checkpointLocation", str(scratch / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.read.format("delta").load(table).join(rows, "id").groupBy(rows["k"]).count().collect()


def _collect(batch: DataFrame, _number: int) -> None:
    batch.collect()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
