"""Heartbeats: an idle stream must not hold back the watermark of a flow that has other inputs.

The supervisor decides when a stream is idle and writes a time into a small file. A streaming source beside the stream
turns it into one row whose only work is to move the watermark. The time is that source's offset, so a batch that runs
again has the same row.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from headrace.core.files.state_files import StatePath, write_atomically

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    # the worker that plans heartbeats loads this module: what it does not use would only delay its start
    from headrace.engine.state.state import StateDir
    from headrace.project.model import EventTime

MARK = "_heartbeat"
"""The column that is true for heartbeats and null for rows, from the union to the filter after the watermark."""


def heartbeat_file(state: StateDir, flow: str, stream: str) -> StatePath:
    """Where the newest heartbeat of a stream in a flow is kept."""
    return state.root / "flows" / flow / "heartbeats" / stream


def write_heartbeat(state: StateDir, flow: str, stream: str, time_ms: int) -> None:
    """Let the stream's watermark in this flow advance to a time (milliseconds since 1970). It never goes back.

    The heartbeat is for the current generation alone: one that begins anew reads old records again, and they must not
    be late.
    """
    write_atomically(heartbeat_file(state, flow, stream), f"{time_ms} {state.current(flow).id}".encode())


def read_heartbeat(file: StatePath, generation: str) -> int | None:
    """The newest heartbeat of a generation, if there is one."""
    try:
        time_ms, _, written_for = file.read_text(encoding="utf-8").partition(" ")
    except FileNotFoundError:
        return None
    return int(time_ms) if written_for == generation else None


def due(now: datetime, last_row_at: datetime | None, caught_up: bool, idle: timedelta) -> int | None:
    """The heartbeat to write for a stream, in milliseconds since 1970; None while it is not idle. Pure.

    `last_row_at` is when its last record came or, before the first one, when the flow was started; None when neither is
    known. A stream with records still to be read is never idle, however long it was quiet. Heartbeats come in steps of
    a tenth of `idle`, because each of them is a batch.
    """
    if not caught_up or last_row_at is None or now - last_row_at < idle:
        return None
    step = max(round(idle.total_seconds() * 100), 1)
    return int((now - idle).timestamp() * 1000) // step * step


def with_heartbeats(frame: DataFrame, event_time: EventTime, file: StatePath, generation: str) -> DataFrame:
    """The rows and beside them, marked, the heartbeats: rows of nothing but an event time.

    It lies the watermark's delay after the heartbeat, so that the watermark comes to be the heartbeat itself.
    """
    from pyspark.sql import functions as F

    from headrace.engine.inputs.heartbeat_source import register_heartbeats

    delay = round(event_time.watermark.total_seconds() * 1000)
    options = {"generation": generation, "delay_ms": str(delay)}
    source = register_heartbeats(frame.sparkSession, file.absolute())
    schema = f"`{event_time.column}` timestamp, {MARK} boolean"
    beats = frame.sparkSession.readStream.format(source).schema(schema).options(**options).load()
    marked = frame.withColumn(MARK, F.lit(None).cast("boolean"))
    return marked.unionByName(beats, allowMissingColumns=True)


def without_heartbeats(frame: DataFrame, event_time: EventTime) -> DataFrame:
    """The rows alone, after the watermark has seen the heartbeats.

    The condition names the event time, which is never null in a heartbeat, because Catalyst moves any other condition
    to before the watermark.
    """
    return frame.where(f"{MARK} IS NULL OR `{event_time.column}` IS NULL").drop(MARK)
