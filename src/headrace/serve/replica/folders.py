"""The folders of a node's copies of one endpoint: `<store>/<endpoint>/v<N>-<log>-<random>`.

The name holds the id of the applied log, so that a copy of a removed log is never continued with another log.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from headrace.serve.replica.pointers import remove_report

_ASIDE = "aside"


def prefix(version: int, log: str) -> str:
    """The common prefix of the folders of one version."""
    return f"v{version}-{log}-"


def new_folder(home: Path, version: int, log: str) -> Path:
    """The path of a new copy; the folder does not exist yet."""
    return home / f"{prefix(version, log)}{uuid.uuid4().hex[:8]}"


def copies(home: Path, version: int, log: str) -> list[Path]:
    """The existing copies of a version, including unfinished ones, newest first."""
    existing = [folder for folder in home.glob(f"{prefix(version, log)}*") if folder.is_dir()]
    return sorted(existing, key=lambda folder: folder.stat().st_mtime, reverse=True)


def put_aside(folder: Path) -> None:
    """Move a damaged copy away for analysis; only the last one is kept."""
    aside = folder.parent / _ASIDE
    shutil.rmtree(aside, ignore_errors=True)
    if folder.exists():
        folder.rename(aside)
    remove_report(folder)


def remove(folder: Path) -> None:
    """Remove a copy that no pointer names. Open transactions still read it."""
    shutil.rmtree(folder, ignore_errors=True)
    remove_report(folder)


def tidy(home: Path, version: int, log: str, served: Path | None) -> None:
    """Keep one copy of a version: the served one, else the newest. Others are abandoned or belong to another log."""
    current = served or next(iter(copies(home, version, log)), None)
    for folder in home.glob(f"v{version}-*"):
        if folder.is_dir() and folder != current:
            remove(folder)
