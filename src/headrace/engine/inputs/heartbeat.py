"""Heartbeats: an idle stream must not hold back the watermark of a flow with several inputs.

The supervisor decides when a stream is idle and writes a time into a small file. `heartbeat_source` turns it into a row
whose only effect is to advance the watermark.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from headrace.core.files.state_files import StatePath, write_atomically

if TYPE_CHECKING:
    # only for types: the worker that plans heartbeats loads this module and must start fast
    from headrace.engine.state.state import StateDir


def heartbeat_file(state: StateDir, flow: str, stream: str) -> StatePath:
    """The file with the newest heartbeat of a stream in a flow."""
    return state.root / "flows" / flow / "heartbeats" / stream


def write_heartbeat(state: StateDir, flow: str, stream: str, time_ms: int) -> None:
    """Advance the stream's watermark in this flow to a time (milliseconds since 1970). A watermark never goes back.

    A heartbeat is valid for the current generation only: a new generation reads old records again, and they must not
    be late.
    """
    write_atomically(heartbeat_file(state, flow, stream), f"{time_ms} {state.current(flow).id}".encode())


def read_heartbeat(file: StatePath, generation: str) -> int | None:
    try:
        time_ms, _, written_for = file.read_text(encoding="utf-8").partition(" ")
    except FileNotFoundError:
        return None
    return int(time_ms) if written_for == generation else None


def due(now: datetime, last_row_at: datetime | None, caught_up: bool, idle: timedelta) -> int | None:
    """The heartbeat to write for a stream, in milliseconds since 1970; None while it is not idle.

    `last_row_at` is the arrival of its last record or, before the first record, the start of the flow; None if neither
    is known. A stream with unread records is never idle. Heartbeats advance in steps of a tenth of `idle`, because each
    of them is a batch.
    """
    if not caught_up or last_row_at is None or now - last_row_at < idle:
        return None
    step = max(round(idle.total_seconds() * 100), 1)
    return int((now - idle).timestamp() * 1000) // step * step
