"""Locks on local files and folders, which the operating system releases when their holder ends, even by kill -9."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_SECONDS = 0.02


@contextmanager
def hold_lock(file: Path, refusal: Callable[[int], Exception], *, timeout: float = 0.0) -> Iterator[None]:
    """Hold a lock file, into which this process writes its id.

    When another process holds it for longer than `timeout` seconds, raises the error that `refusal` builds from the id
    of that process, which is 0 while it is unknown.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout
    with file.open("a+", encoding="utf-8") as lock:
        while not _locks(lock.fileno(), fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                lock.seek(0)
                raise refusal(int(lock.read().strip() or 0))
            time.sleep(_POLL_SECONDS)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def lock_holder(file: Path) -> int | None:
    """The id of the process that holds a lock file; None when it is free. 0 while the id is not yet written."""
    try:
        with file.open(encoding="utf-8") as lock:
            if _locks(lock.fileno(), fcntl.LOCK_SH):
                return None
            return int(lock.read().strip() or 0)
    except OSError:
        return None


@contextmanager
def shared_folder_lock(folder: Path) -> Iterator[None]:
    """Hold a shared lock on a folder, after waiting for an exclusive one to end.

    If the folder does not exist, nothing is locked.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        yield
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


@contextmanager
def exclusive_folder_lock(folder: Path) -> Iterator[bool]:
    """Try to hold the exclusive lock on a folder, without waiting; yields whether it is held."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield _locks(handle, fcntl.LOCK_EX)
    finally:
        os.close(handle)


def _locks(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
