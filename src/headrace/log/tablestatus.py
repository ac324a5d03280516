"""The status of each table group, which a capture writes to small files in the local state folder."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.core.context import Context
from headrace.core.encoding.timestamps import utc_text
from headrace.core.files.lock import lock_holder
from headrace.core.files.state_files import write_atomically
from headrace.log.groups import group_id

STALE_SECONDS = 5.0
"""A capture that writes no status of a table group for so long has ended, or hangs."""
LOCK = "capture.lock"
_ENDING = ".json"


def tables_folder(context: Context) -> Path:
    """The folder of copies and status files of a capture."""
    return context.local / "tables"


def write_group(folder: Path, group: str, status: Mapping[str, Any]) -> None:
    """Write the status of a table group. Not durable: after a crash of the machine it is meaningless."""
    now = time.time()
    as_of = utc_text(datetime.fromtimestamp(now, UTC), "milliseconds")
    document = {"group": group, "as_of": as_of, "written": now, **status}
    write_atomically(folder / f"{group_id(group)}{_ENDING}", json.dumps(document).encode(), durable=False)


def read_group(folder: Path, group: str) -> dict[str, Any] | None:
    """The last status of a table group, with its age and whether it is current; None without any."""
    return _read(folder / f"{group_id(group)}{_ENDING}", lock_holder(folder / LOCK))


def read_groups(folder: Path) -> list[dict[str, Any]]:
    """The last status of every table group, with those that are no longer in the project."""
    pid = lock_holder(folder / LOCK)
    files = sorted(folder.glob(f"*{_ENDING}"))
    return [status for file in files if (status := _read(file, pid)) is not None]


def _read(file: Path, pid: int | None) -> dict[str, Any] | None:
    try:
        status: dict[str, Any] = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    age = max(0.0, time.time() - status.pop("written"))
    live = status.get("pid") == pid and age <= STALE_SECONDS
    return {**status, "age_s": round(age, 1), "live": live}
