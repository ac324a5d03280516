"""Delta tables as the lake sink uses them: the state of a table, settings for one statement, compaction."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from headrace.core.lazy import lazy_modules
from headrace.core.schema import from_ddl

if TYPE_CHECKING:
    import pyarrow as pa
    from py4j import protocol as py4j_protocol  # type: ignore[import-untyped]
    from pyspark import errors as pyspark_errors
    from pyspark.sql import SparkSession
else:
    py4j_protocol, pyspark_errors = lazy_modules("py4j.protocol", "pyspark.errors")

_LOG = logging.getLogger(__name__)
_MEGABYTE = 1 << 20
_COMPACT_UP_TO = 64 * _MEGABYTE


@dataclass(frozen=True)
class TableState:
    """The current state of a table, from its log."""

    columns: pa.Schema | None
    """None if the table does not exist."""
    last_batch: int
    """The last batch that this writer has committed; -1 if there is none."""
    marks: frozenset[str] = frozenset()
    """The marks of all writers."""


def table_state(spark: SparkSession, path: str, writer: str) -> TableState:
    """The state of the table at a path, on any file system that Spark can access."""
    jvm: Any = spark._jvm
    nothing = jvm.scala.Option.empty()
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)
    snapshot = log.update(False, nothing, nothing)
    if snapshot.version() < 0:
        return TableState(None, -1)
    marks = snapshot.transactions()
    written, names = marks.get(writer), marks.keys().mkString("\n").split("\n")
    last = -1 if written.isEmpty() else int(written.get())
    return TableState(from_ddl(snapshot.schema().toDDL()), last, frozenset(names))


@contextmanager
def settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Session settings for one statement. Every query has its own session, so no other query sees them."""
    before = {key: spark.conf.get(key, None) for key in values}
    for key, value in values.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


def compact(spark: SparkSession, path: str, retention: timedelta) -> None:
    """Merge small files and remove files that no version within `retention` uses.

    Readers see the old files or the new ones, never both. A file that has reached 64 MB is not rewritten again, which
    bounds the work by what came since. The rows are committed already, so a failure is only logged.
    """
    values = {
        "spark.databricks.delta.optimize.minFileSize": str(_COMPACT_UP_TO),
        "spark.databricks.delta.optimize.maxFileSize": str(_COMPACT_UP_TO),
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        # the default lists even a small folder with 10,000 tasks
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
    }
    hours = retention / timedelta(hours=1)
    try:
        with settings(spark, values):
            spark.sql(f"OPTIMIZE delta.`{path}`").collect()
            spark.sql(f"VACUUM delta.`{path}` RETAIN {hours:f} HOURS").collect()
    except (pyspark_errors.PySparkException, py4j_protocol.Py4JJavaError) as error:
        _LOG.warning("compaction of %s is postponed: %s", path, str(error).splitlines()[0])
