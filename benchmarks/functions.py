"""Rows per second of each library function, compared with the nearest native expression over the same columns.

`python -m benchmarks.functions [--rows N] [--only NAME …] [--json]`
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.engine.spark.functions import register
from headrace.engine.spark.session import start_session
from headrace.functions.expansion import called, expand_text
from headrace.functions.library import library
from headrace.project.loader import Project, load
from headrace.project.model import SparkSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = """
SELECT id, id % 1000 AS k, pmod(id * 7919, 180) - 90.0D + 0.5D AS lat, pmod(id * 104729, 360) - 180.0D + 0.5D AS lon,
  1500000000 + id AS s, (1500000000 + id) * 1000 AS ms, timestamp_seconds(1500000000 + id) AS ts,
  concat('a', id % 100, ' b', id % 10) AS t, CAST(concat('x', id) AS BINARY) AS b,
  concat('{"a":{"b":', id % 100, '},"c":"text"}') AS j, array(id % 7, id % 5, id % 3, 1) AS arr,
  map('a', id, 'b', 1) AS m,
  array(timestamp_seconds(0), timestamp_seconds(60), timestamp_seconds(120)) AS times,
  array(double(id % 7), double(id % 5), 3.0D) AS vals, CAST(3344474489181175808 AS STRING) AS cell
FROM range({rows})
"""

# function: a call over the columns above, and Spark's nearest native expression
PAIRS: dict[str, tuple[str, str]] = {
    "ArrayAggregate": ("ArrayAggregate(arr, 'distinct.count', 'long')", "size(array_distinct(arr))"),
    "ArrayOperate": ("ArrayOperate(arr, 'distinct.sorted', 'long')", "array_sort(array_distinct(arr))"),
    "ElementAt": ("ElementAt(arr, -1)", "element_at(arr, -1)"),
    "ListContains": ("ListContains(arr, 1L)", "array_contains(arr, 1L)"),
    "MapGet": ("MapGet(m, 'a')", "m['a']"),
    "ByteToString": ("ByteToString(b)", "CAST(b AS STRING)"),
    "Split": ("Split(t, ' ')", "split(t, ' ')"),
    "Distance": ("Distance(lat, lon, 48.8, 2.3)", "acos(sin(lat) * sin(48.8D) + cos(lat) * cos(48.8D) * cos(lon))"),
    "GeoHash": ("GeoHash(lat, lon, 6)", "substring(hex(CAST(lat * 1000 AS BIGINT)), 1, 6)"),
    "S2Id": ("S2Id(lat, lon, 13)", "CAST(hash(lat, lon) AS STRING)"),
    "S2AreaInKm2": ("S2AreaInKm2(cell)", "sqrt(CAST(cell AS BIGINT))"),
    "StartOfMonth": ("StartOfMonth(s, 'Asia/Kolkata')", "unix_seconds(date_trunc('MONTH', ts))"),
    "EndOfMonth": ("EndOfMonth(s, 'Asia/Kolkata')", "unix_seconds(CAST(last_day(ts) AS TIMESTAMP))"),
    "StartOfWeek": ("StartOfWeek(ms, 'Asia/Kolkata')", "unix_millis(date_trunc('WEEK', ts))"),
    "EndOfWeek": ("EndOfWeek(ms, 'Asia/Kolkata')", "unix_millis(date_trunc('WEEK', ts))"),
    "TimeInDate": ("TimeInDate(s, 21, 0, 'Asia/Kolkata')", "unix_seconds(date_trunc('DAY', ts))"),
    "TimestampFromUnix": ("TimestampFromUnix(s)", "timestamp_seconds(s)"),
    "FormatTimeInZone": ("FormatTimeInZone(ts, 'Asia/Kolkata', 'hh:mm aa')", "date_format(ts, 'hh:mm a')"),
    "JsonQuery": ("JsonQuery(j, '$.a.b')", "get_json_object(j, '$.a.b')"),
    "JsonQuery, in Python": ("JsonQuery(j, '$..b')", "get_json_object(j, '$.a.b')"),
    "JsonUpdate": ("JsonUpdate(j, '$.a.b', id)", "to_json(from_json(j, 'a struct<b bigint>, c string'))"),
    "JsonDelete": ("JsonDelete(j, '$.a.b')", "to_json(from_json(j, 'c string'))"),
    "LinearTrend": ("LinearTrend(times, vals, timestamp_seconds(0), 5)", "aggregate(vals, 0D, (a, e) -> a + e)"),
    "ExponentialMovingAverage": (
        "ExponentialMovingAverage(times, vals, timestamp_seconds(0), 5, 0.2)", "aggregate(vals, 0D, (a, e) -> a + e)",
    ),
    "SingleFeatureWithType": ("SingleFeatureWithType('k', id, 'LongType')", "array(named_struct('k', 'k', 'v', id))"),
    "DartGet": ("DartGet('names', CAST(k AS STRING))", "element_at(map('1', 'one', '2', 'two'), CAST(k AS STRING))"),
    "DartContains": ("DartContains('some', CAST(k AS STRING))", "CAST(k AS STRING) IN ('1', '2', '3')"),
    "HistogramBucket": ("HistogramBucket(lat, '1,10,50')", "explode(array('+Inf', '1', '10', '50'))"),
    "OutlierMad": ("OutlierMad(vals, times, timestamp_seconds(0), 3, 1, 3, 5)", "explode(vals)"),
    "CollectArray": ("k, CollectArray(id)", "k, collect_list(id)"),
    "DistinctCount": ("k, DistinctCount(id)", "k, count(DISTINCT id)"),
    "PercentileAggregator": ("k, PercentileAggregator(90, lat)", "k, percentile(lat, 0.9)"),
    "Features": ("k, Features('a', lat)", "k, collect_list(named_struct('key', 'a', 'value', lat))"),
    "FeaturesWithType": (
        "k, FeaturesWithType('a', lat, 'DoubleType')", "k, collect_set(named_struct('key', 'a', 'value', lat))",
    ),
}  # fmt: skip


def project_in(folder: Path) -> Project:
    """A project with lookups of a thousand entries."""
    for name, text in {
        "headrace.yaml": "project: bench\nfunctions: {lookups: {path: .}}\n",
        "dart-get/names": json.dumps({str(n): f"name {n}" for n in range(1000)}),
        "dart-contains/some": json.dumps({"data": [str(n) for n in range(0, 1000, 2)]}),
    }.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return load(folder)


def seconds(spark: SparkSession, select: str, repeats: int = 2) -> float:
    """Return the best of some runs, after a warm-up run."""
    best = float("inf")
    for number in range(repeats + 1):
        began = time.perf_counter()
        spark.sql(select).write.format("noop").mode("overwrite").save()
        if number:
            best = min(best, time.perf_counter() - began)
    return best


def measure(spark: SparkSession, project: Project, names: Sequence[str], rows: int) -> list[dict[str, Any]]:
    """A line per function."""
    spark.sql(ROWS.replace("{rows}", str(rows))).repartition(2).createOrReplaceTempView("given")
    spark.sql("CACHE TABLE given")
    figures = []
    for name in names:
        ours, native = PAIRS[name]
        group = " GROUP BY k" if ours.startswith("k, ") else ""
        text = expand_text(f"SELECT {ours} FROM given{group}")
        register(spark, [text], project)
        times = seconds(spark, text), seconds(spark, f"SELECT {native} FROM given{group}")
        function = library()[name.partition(",")[0].lower()]
        python = (function.arrow or function.build) is not None and function.name.lower() in called(text)
        line = {"function": name, "in": "Python" if python else "Spark", "native": native}
        line |= {"rows_per_s": round(rows / times[0]), "native_rows_per_s": round(rows / times[1])}
        figures.append(line | {"ratio": round(times[1] / times[0], 2)})
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.functions", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--only", nargs="*", default=list(PAIRS), choices=list(PAIRS), metavar="NAME")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        spark = start_session(SparkSpec(master="local[2]"), "functions", Path(scratch) / "logs")
        lines = measure(spark, project_in(Path(scratch)), options.only, options.rows)
        spark.stop()
    load_now = os.getloadavg()[0]
    if options.json:
        print(json.dumps({"rows": options.rows, "load": round(load_now, 1), "functions": lines}, indent=1))
        return
    print(f"{options.rows:,} rows, 2 slots, load {load_now:.1f}\n")
    print("| function | runs in | rows/s | native, rows/s | ratio |\n|---|---|--:|--:|--:|")
    for one in lines:
        speeds = f"{one['rows_per_s']:,} | {one['native_rows_per_s']:,}"
        print(f"| {one['function']} | {one['in']} | {speeds} | {one['ratio']:.2f}x |")


if __name__ == "__main__":
    main()
