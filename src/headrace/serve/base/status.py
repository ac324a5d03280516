"""What a node says of itself and of the endpoints it keeps: small files in the store folder that everybody may read."""

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
"""An applier that says nothing for so long is away."""

NODE_FILE, NODE_LOCK = "node.json", "node.lock"
_FILE = "status.json"


@dataclass(frozen=True)
class ServeStatus:
    """What was last said, and when."""

    endpoints: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Per endpoint: state (hydrating | ready | failed), version, position, log_end, lag, rows, refused, snapshot_age_s,
    error, and the same of each of its `versions`."""
    as_of: str | None = None
    age_s: float | None = None
    pid: int | None = None
    note: str | None = None
    """What is wrong with the applier as a whole."""

    @property
    def stale(self) -> bool:
        """Whether the applier seems to be away."""
        return self.age_s is None or self.age_s > STALE_SECONDS

    def to_json(self) -> dict[str, Any]:
        """For commands and `/health`."""
        return {**vars(self), "stale": self.stale}


def read_status(store: Path) -> ServeStatus:
    """What is known of the endpoints in a store folder."""
    try:
        said = json.loads((store / _FILE).read_bytes())
    except (OSError, ValueError):
        return ServeStatus()
    return ServeStatus(
        said["endpoints"], said["as_of"], round(max(0.0, time.time() - said["at"]), 3), said["pid"], said["note"]
    )


def write_status(store: Path, endpoints: Mapping[str, Mapping[str, Any]], note: str | None = None) -> None:
    """Say it. Not durable: after a crash of the machine nothing of it holds."""
    now = time.time()
    said = {
        "as_of": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "at": now,
        "pid": os.getpid(),
        "note": note,
        "endpoints": endpoints,
    }
    write_atomically(store / _FILE, json.dumps(said, separators=(",", ":")).encode(), durable=False)


def read_node(store: Path) -> dict[str, Any] | None:
    """What the node that keeps a store says of itself; None when none runs."""
    pid = lock_holder(store / NODE_LOCK)
    if pid is None:
        return None
    try:
        said: dict[str, Any] = json.loads((store / NODE_FILE).read_bytes())
    except (OSError, ValueError):
        said = {}
    return said if said.get("pid") == pid else {"pid": pid, "http": None, "grpc": None, "as_of": None, "processes": []}
