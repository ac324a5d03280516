"""The status of an engine as other processes see it: a file in the state folder, or its own answer. Needs no Spark."""

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
"""What a flow can be."""
STATES: tuple[State, ...] = get_args(State)
_ANSWER_SECONDS = 1.0
_ASK_AFTER_SECONDS = 2.5


def status_file(state: StateDir) -> Path:
    """Where an engine writes its status."""
    return state.local / "status.json"


def write_status(state: StateDir, document: Mapping[str, Any]) -> None:
    """Put the status where others find it."""
    write_atomically(status_file(state), json.dumps(document, separators=(",", ":")).encode(), durable=False)


@dataclass(frozen=True)
class StatusReading:
    """A status, and how much it can be trusted."""

    freshness: Freshness
    document: dict[str, Any] | None
    """None when no engine ever ran here."""
    age_s: float | None

    def to_json(self) -> dict[str, Any]:
        """The document with what is known about its age."""
        empty: dict[str, Any] = {"as_of": None, "flows": {}, "problems": [], "notes": [], "flow_list": []}
        age = None if self.age_s is None else round(self.age_s, 1)
        return {**(self.document or empty), "freshness": self.freshness, "age_s": age}


def look(state: StateDir) -> StatusReading:
    """What is known now. An engine whose disk is full cannot write, but it can answer."""
    found, holder = _read(status_file(state)), state.holder()
    if holder is None:
        return StatusReading("no-engine", found, _age(found))
    age = _age(found)
    if found is not None and age is not None and age > _ASK_AFTER_SECONDS:
        found = _ask(found) or found
        age = _age(found)
    # a new engine has the folder, and what is written there is its predecessor's
    stale = found is None or age is None or age > found["stale_after_s"] or not _is_of(found, holder)
    return StatusReading("stale" if stale else "live", found, age)


def _is_of(document: Mapping[str, Any], holder: Owner) -> bool:
    return bool(document["engine"]["pid"] == holder.pid) and holder.host is None


def _read(file: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if "flow_list" in found else None


def _age(document: Mapping[str, Any] | None) -> float | None:
    if document is None:
        return None
    return time.time() - datetime.fromisoformat(document["as_of"]).timestamp()


def _ask(document: Mapping[str, Any]) -> dict[str, Any] | None:
    address = document["engine"]["http"]
    if address is None:
        return None
    try:
        with urllib.request.urlopen(f"{address}/api/v1/status", timeout=_ANSWER_SECONDS) as answer:  # noqa: S310
            found: dict[str, Any] = json.load(answer)
    except (OSError, ValueError, urllib.error.URLError):
        return None
    # another engine may have got the port since
    return found if found["engine"]["pid"] == document["engine"]["pid"] else None
