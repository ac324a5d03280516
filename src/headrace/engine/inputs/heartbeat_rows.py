"""Heartbeats among the rows of an input: added before the watermark, removed after it."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.core.files.state_files import StatePath
from headrace.core.schema import to_ddl
from headrace.engine.inputs.heartbeat_source import MARK, heartbeat_schema, register_heartbeats
from headrace.project.model import EventTime


def with_heartbeats(frame: DataFrame, event_time: EventTime, file: StatePath, generation: str) -> DataFrame:
    """The rows and the heartbeats: marked rows that have only an event time.

    The event time is the heartbeat plus the watermark's delay, so that the watermark advances to the heartbeat.
    """
    delay = round(event_time.watermark.total_seconds() * 1000)
    options = {"generation": generation, "delay_ms": str(delay)}
    source = register_heartbeats(frame.sparkSession, file.absolute())
    schema = to_ddl(heartbeat_schema(event_time.column))
    heartbeats = frame.sparkSession.readStream.format(source).schema(schema).options(**options).load()
    rows = frame.withColumn(MARK, F.lit(None).cast("boolean"))
    return rows.unionByName(heartbeats, allowMissingColumns=True)


def without_heartbeats(frame: DataFrame, event_time: EventTime) -> DataFrame:
    """The rows alone; to be called after the watermark.

    The condition includes the event time, which is never null in a heartbeat, because Catalyst moves a condition
    without it before the watermark.
    """
    return frame.where(f"{MARK} IS NULL OR `{event_time.column}` IS NULL").drop(MARK)
