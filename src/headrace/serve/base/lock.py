"""The locks of a store folder: one node and one applier per folder."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from headrace.core.errors import Exit, ProjectError
from headrace.core.files.lock import hold_lock


def locked(file: Path, what: str, *, patience: float = 0.0) -> AbstractContextManager[None]:
    """Hold a lock file; ProjectError when another process holds it for longer than `patience` seconds."""
    return hold_lock(file, lambda pid: _in_use(file, what, pid), timeout=patience)


def _in_use(file: Path, what: str, pid: int) -> ProjectError:
    return ProjectError(
        "store-in-use",
        f"another {what} (pid {pid or 'unknown'}) uses the store in {file.parent}",
        hint="stop it first, or choose another folder with --set serve.store=DIR",
        exit_code=Exit.CONFLICT,
    )
