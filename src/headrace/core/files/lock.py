"""A lock that the operating system releases, whatever becomes of its holder."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_LOOK_SECONDS = 0.05


@contextmanager
def held(file: Path, refusal: Callable[[str], Exception], *, patience: float = 0.0) -> Iterator[None]:
    """Hold a lock file, which then has this process's id in it. When another process does so for longer than the
    patience, `refusal` makes the error of its id."""
    file.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience
    with file.open("a+", encoding="utf-8") as lock:
        while not _taken(lock.fileno()):
            if time.monotonic() >= deadline:
                lock.seek(0)
                raise refusal(lock.read().strip() or "unknown")
            time.sleep(_LOOK_SECONDS)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def holder(file: Path) -> int | None:
    """The process that holds a lock; None when nobody does."""
    try:
        with file.open(encoding="utf-8") as lock:
            if _taken(lock.fileno(), fcntl.LOCK_SH):
                return None
            return int(lock.read().strip() or 0)
    except OSError:
        return None


def _taken(number: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(number, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
