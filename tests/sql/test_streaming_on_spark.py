"""The refusals against Spark's own opinion, so that a new Spark that can do more is noticed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.sql.query import parse
from headrace.sql.streaming import output_refusals, refusals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def streams(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    for name in ("t", "u"):
        rows = session.readStream.format("rate").option("rowsPerSecond", 1).load()
        marked = rows.withWatermark("timestamp", "5 seconds")
        marked.selectExpr("timestamp AS ts", "value AS a").createOrReplaceTempView(name)
    return session


CASES = [
    ("SELECT a FROM (SELECT a FROM t ORDER BY a) WHERE a > 1", False, False),
    ("SELECT a FROM t SORT BY a", False, False),
    ("SELECT a FROM t WHERE a IN (SELECT a FROM u)", False, False),
    ("SELECT window(ts, '5 seconds') AS w, count(DISTINCT a) AS n FROM t GROUP BY 1", False, False),
    ("SELECT t.a FROM t LEFT ANTI JOIN u ON t.a = u.a", False, False),
    ("SELECT a FROM t INTERSECT SELECT id FROM range(3)", False, False),
    ("SELECT a FROM t TABLESAMPLE (10 PERCENT)", False, False),
    ("SELECT sum(a) OVER (PARTITION BY a) AS n FROM t", False, False),
    ("SELECT count(*) AS n FROM t", False, True),
    ("SELECT a, count(*) AS n FROM t GROUP BY a", False, True),
    ("SELECT session_window(ts, '5 seconds') AS w, count(*) AS n FROM t GROUP BY 1", True, False),
    ("SELECT t.a FROM t LEFT JOIN u ON t.a = u.a AND u.ts BETWEEN t.ts AND t.ts + INTERVAL 1 MINUTE", True, False),
    ("SELECT window(ts, '5 seconds') AS w, count(*) AS n FROM t GROUP BY window(ts, '5 seconds')", True, True),
    ("SELECT a FROM t JOIN (SELECT id FROM range(9) ORDER BY id LIMIT 3) r ON t.a = r.id", True, True),
    ("SELECT a FROM t DISTRIBUTE BY a", True, True),
    ("SELECT DISTINCT a, ts FROM t", True, True),
]


@pytest.mark.parametrize(("sql", "append", "update"), CASES)
def test_spark_agrees(streams: SparkSession, tmp_path: Path, sql: str, append: bool, update: bool) -> None:
    for output, possible in (("append", append), ("update", update)):
        found = [*refusals(parse(sql)), *output_refusals(parse(sql), output, ["ts"])]
        assert (not found) == possible
        assert _starts(streams, sql, output, tmp_path / output) == possible


def _starts(session: SparkSession, sql: str, output: str, checkpoint: Path) -> bool:
    from pyspark.errors import PySparkException

    try:
        writer = session.sql(sql).writeStream.format("noop").outputMode(output)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="1 hour").start()
    except PySparkException:
        return False
    query.stop()
    return True
