"""The jobs of the benchmark in plain PySpark: with from_json, or with the protobuf library in mapInArrow."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

COLUMNS = (
    "order_id string, service string, status string, customer_id bigint, driver_id bigint, amount double, "
    "pickup_lat double, pickup_lon double, area string, event_timestamp timestamp"
)
_FIELDS = [
    "order_id", "service", "status", "customer_id", "driver_id", "amount", "pickup_lat", "pickup_lon", "area",
]  # fmt: skip


def session(jars: list[str]) -> SparkSession:
    builder = SparkSession.builder.master("local[*]").config("spark.jars", ",".join(jars))
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    # the default of 200 shuffle partitions would make the windowed job far too slow on a small machine
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.sql.session.timeZone", "UTC")
    return builder.getOrCreate()


def decode_protobuf(module_dir: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys

        sys.path.insert(0, module_dir)
        from rides_pb2 import Booking

        for batch in batches:
            columns: dict[str, list[Any]] = {name: [] for name in _FIELDS}
            times = []
            for value in batch.column("value").to_pylist():
                booking = Booking.FromString(value)
                for name in _FIELDS:
                    columns[name].append(getattr(booking, name))
                times.append(booking.event_timestamp.ToDatetime(datetime.UTC))
            arrays = [pa.array(values) for values in columns.values()]
            yield pa.RecordBatch.from_arrays(
                [*arrays, pa.array(times, pa.timestamp("us", "UTC"))], [*_FIELDS, "event_timestamp"]
            )

    return decode


def rows(spark: SparkSession, job: str, brokers: str, module_dir: str) -> DataFrame:
    form, shape, _sink = job.split("_")
    raw = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", f"bench_{form}")
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    if form == "json":
        bookings = raw.select(F.from_json(F.col("value").cast("string"), COLUMNS).alias("b")).select("b.*")
    else:
        bookings = raw.select("value").mapInArrow(decode_protobuf(module_dir), COLUMNS)
    if shape == "stateless":
        return bookings.where("status = 'COMPLETED'").select("order_id", "service", "amount")
    windows = bookings.withWatermark("event_timestamp", "10 seconds").groupBy(
        F.window("event_timestamp", "10 seconds"), "service"
    )
    totals = windows.agg(F.count("*").alias("bookings"), F.sum("amount").alias("amount"))
    return totals.select(F.col("window.start").alias("window_start"), "service", "bookings", "amount")


def run(spark: SparkSession, job: str, brokers: str, output: str, module_dir: Path) -> None:
    frame = rows(spark, job, brokers, str(module_dir))
    if job.endswith("kafka"):
        records = frame.select(F.col("service").alias("key"), F.to_json(F.struct("*")).alias("value"))
        writer = records.writeStream.format("kafka").option("kafka.bootstrap.servers", brokers).option("topic", output)
    else:
        writer = frame.writeStream.format("noop")
    with tempfile.TemporaryDirectory() as checkpoint:
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
