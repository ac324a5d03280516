"""The status of an engine for other processes: a file in the state folder, or its HTTP response. No Spark is needed."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

from headrace.core.files.state_files import write_atomically
from headrace.engine.state.lease import Owner
from headrace.engine.state.state import StateDir

Freshness = Literal["live", "stale", "no-engine"]
State = Literal["waiting", "starting", "running", "degraded", "stopped", "failed"]
"""The states of a flow."""
STATES: tuple[State, ...] = get_args(State)
_HTTP_TIMEOUT = 1.0
_REQUEST_AFTER_SECONDS = 2.5


def status_file(state: StateDir) -> Path:
    return state.local / "status.json"


def write_status(state: StateDir, document: Mapping[str, Any]) -> None:
    write_atomically(status_file(state), json.dumps(document, separators=(",", ":")).encode(), durable=False)


@dataclass(frozen=True)
class StatusReading:
    """A status document and its freshness."""

    freshness: Freshness
    document: dict[str, Any] | None
    """None if no engine has run here yet."""
    age_s: float | None

    def to_json(self) -> dict[str, Any]:
        empty: dict[str, Any] = {"as_of": None, "flows": {}, "problems": [], "notes": [], "flow_list": []}
        age = None if self.age_s is None else round(self.age_s, 1)
        return {**(self.document or empty), "freshness": self.freshness, "age_s": age}


def read_status(state: StateDir) -> StatusReading:
    """The newest status. If the file is old it is requested over HTTP: an engine whose disk is full still responds."""
    document, holder = _read(status_file(state)), state.holder()
    if holder is None:
        return StatusReading("no-engine", document, _age(document))
    age = _age(document)
    if document is not None and age is not None and age > _REQUEST_AFTER_SECONDS:
        document = _request(document) or document
        age = _age(document)
    # a new engine may hold the folder while the file is still that of its predecessor
    stale = document is None or age is None or age > document["stale_after_s"] or not _is_of(document, holder)
    return StatusReading("stale" if stale else "live", document, age)


def _is_of(document: Mapping[str, Any], holder: Owner) -> bool:
    return bool(document["engine"]["pid"] == holder.pid) and holder.host is None


def _read(file: Path) -> dict[str, Any] | None:
    try:
        document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if "flow_list" in document else None


def _age(document: Mapping[str, Any] | None) -> float | None:
    if document is None:
        return None
    return time.time() - datetime.fromisoformat(document["as_of"]).timestamp()


def _request(document: Mapping[str, Any]) -> dict[str, Any] | None:
    address = document["engine"]["http"]
    if address is None:
        return None
    try:
        with urllib.request.urlopen(f"{address}/api/v1/status", timeout=_HTTP_TIMEOUT) as response:  # noqa: S310
            current: dict[str, Any] = json.load(response)
    except (OSError, ValueError, urllib.error.URLError):
        return None
    # another engine may use the port by now
    return current if current["engine"]["pid"] == document["engine"]["pid"] else None
