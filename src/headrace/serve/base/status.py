"""The status of a node and its endpoints: small files in the store folder that every process can read."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.core.files.lock import lock_holder
from headrace.core.files.state_files import write_atomically

STALE_SECONDS = 5.0
"""An applier whose status is older than this counts as unavailable."""

NODE_FILE, NODE_LOCK = "node.json", "node.lock"
_FILE = "status.json"


@dataclass(frozen=True)
class ServeStatus:
    """The last reported status, and its time."""

    endpoints: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Per endpoint: state (hydrating | ready | failed), version, position, log_end, lag, rows, refused, snapshot_age_s,
    error, and the same of each of its `versions`."""
    as_of: str | None = None
    age_s: float | None = None
    pid: int | None = None
    note: str | None = None
    """A problem of the applier as a whole."""

    @property
    def stale(self) -> bool:
        """Whether the applier seems to be unavailable."""
        return self.age_s is None or self.age_s > STALE_SECONDS

    def to_json(self) -> dict[str, Any]:
        """The form for commands and `/health`."""
        return {**vars(self), "stale": self.stale}


def read_status(store: Path) -> ServeStatus:
    """The status of the endpoints in a store folder."""
    try:
        document = json.loads((store / _FILE).read_bytes())
    except (OSError, ValueError):
        return ServeStatus()
    return ServeStatus(
        document["endpoints"],
        document["as_of"],
        round(max(0.0, time.time() - document["at"]), 3),
        document["pid"],
        document["note"],
    )


def write_status(store: Path, endpoints: Mapping[str, Mapping[str, Any]], note: str | None = None) -> None:
    """Write the status. Not durable: after a crash of the machine it is obsolete."""
    now = time.time()
    document = {
        "as_of": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "at": now,
        "pid": os.getpid(),
        "note": note,
        "endpoints": endpoints,
    }
    write_atomically(store / _FILE, json.dumps(document, separators=(",", ":")).encode(), durable=False)


def read_node(store: Path) -> dict[str, Any] | None:
    """The status of the node that uses a store; None when no node runs."""
    pid = lock_holder(store / NODE_LOCK)
    if pid is None:
        return None
    try:
        document: dict[str, Any] = json.loads((store / NODE_FILE).read_bytes())
    except (OSError, ValueError):
        document = {}
    return (
        document
        if document.get("pid") == pid
        else {"pid": pid, "http": None, "grpc": None, "as_of": None, "processes": []}
    )
