"""A lock that the operating system releases, whatever becomes of its holder."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.core.errors import Exit, ProjectError

_LOOK_SECONDS = 0.05


@contextmanager
def locked(file: Path, what: str, *, patience: float = 0.0) -> Iterator[None]:
    """Hold a lock file, which then has this process's id in it; a ProjectError when another process does so for longer
    than the patience."""
    file.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience
    with file.open("a+", encoding="utf-8") as held:
        while not _taken(held.fileno()):
            if time.monotonic() >= deadline:
                held.seek(0)
                raise _in_use(file, what, held.read().strip())
            time.sleep(_LOOK_SECONDS)
        held.truncate(0)
        held.write(str(os.getpid()))
        held.flush()
        yield


def holder(file: Path) -> int | None:
    """The process that holds a lock; None when nobody does."""
    try:
        with file.open(encoding="utf-8") as held:
            if _taken(held.fileno(), fcntl.LOCK_SH):
                return None
            return int(held.read().strip() or 0)
    except OSError:
        return None


def _taken(number: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(number, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _in_use(file: Path, what: str, pid: str) -> ProjectError:
    return ProjectError(
        "store-in-use",
        f"another {what} (pid {pid or 'unknown'}) keeps the store in {file.parent}",
        hint="stop it first, or choose another folder with --set serve.store=DIR",
        exit_code=Exit.CONFLICT,
    )
