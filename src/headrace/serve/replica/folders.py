"""The folders in which a node keeps its copies of one endpoint: `<store>/<endpoint>/v<N>-<log>-<random>`.

The name holds the id of the log that was applied: a copy of a log that was removed is never continued with another.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from headrace.serve.replica.pointers import forget_report

_ASIDE = "aside"


def prefix(version: int, log: str) -> str:
    """How the folders of one version begin."""
    return f"v{version}-{log}-"


def new_folder(home: Path, version: int, log: str) -> Path:
    """A folder for a new copy; it is not made yet."""
    return home / f"{prefix(version, log)}{uuid.uuid4().hex[:8]}"


def copies(home: Path, version: int, log: str) -> list[Path]:
    """The copies of a version that are there, also unfinished ones, newest first."""
    found = [one for one in home.glob(f"{prefix(version, log)}*") if one.is_dir()]
    return sorted(found, key=lambda one: one.stat().st_mtime, reverse=True)


def put_aside(folder: Path) -> None:
    """Keep a damaged copy where nobody serves it, for whoever wants to know what happened; only the last one."""
    aside = folder.parent / _ASIDE
    shutil.rmtree(aside, ignore_errors=True)
    if folder.exists():
        folder.rename(aside)
    forget_report(folder)


def remove(folder: Path) -> None:
    """Remove a copy that nobody is pointed to any more; who still reads it keeps it until its view ends."""
    shutil.rmtree(folder, ignore_errors=True)
    forget_report(folder)


def tidy(home: Path, version: int, log: str, served: Path | None) -> None:
    """Keep one copy of a version: the one that is served, else the newest. Others were begun and left, or are of
    another log."""
    kept = served or next(iter(copies(home, version, log)), None)
    for folder in home.glob(f"v{version}-*"):
        if folder.is_dir() and folder != kept:
            remove(folder)
