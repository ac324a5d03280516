"""Locks of a state folder: file locks in a local folder, leases on an object store.

The operating system releases a file lock even after `kill -9`.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from headrace.core.errors import ProjectError
from headrace.core.files.objects import ObjectPath
from headrace.core.files.state_files import StatePath
from headrace.engine.state.lease import Lease, Owner, owner_of

_WAIT_SECONDS = 0.3


@contextmanager
def reading(folder: StatePath) -> Iterator[None]:
    """Prevent that files of the folder are merged or removed while they are read. Readers do not exclude each other."""
    if isinstance(folder, ObjectPath):
        yield  # files on an object store are never merged, as readers cannot be locked out
        return
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
def changing(folder: StatePath) -> Iterator[bool]:
    """Yields whether the files of a folder may be merged or removed now: false while they are being read."""
    if isinstance(folder, ObjectPath):
        yield False
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        yield False
        return
    try:
        yield True
    finally:
        os.close(handle)


class HeldError(Exception):
    """A lock is held by another process."""

    def __init__(self, owner: Owner) -> None:
        super().__init__(str(owner))
        self.owner = owner


@dataclass
class Fence:
    """Knows whether this process still holds its leases. Once a lease is lost, nothing may be written."""

    _leases: list[Lease] = field(default_factory=list)

    def add(self, lease: Lease) -> None:
        self._leases.append(lease)

    def remove(self, lease: Lease) -> None:
        self._leases.remove(lease)

    def problem(self) -> ProjectError | None:
        """The problem of the first lease that is lost."""
        return next((problem for lease in self._leases if (problem := lease.problem())), None)

    def check(self) -> None:
        problem = self.problem()
        if problem is not None:
            raise problem


@contextmanager
def holding(file: StatePath, fence: Fence) -> Iterator[None]:
    """Hold a lock, whose file then has the pid of this process. Raises HeldError if another process holds it."""
    if isinstance(file, ObjectPath):
        lease = Lease(file)
        holder = lease.take()
        if holder is not None:
            raise HeldError(holder)
        fence.add(lease)
        try:
            yield
        finally:
            fence.remove(lease)
            lease.release()
        return
    with _flocked(file):
        yield


@contextmanager
def _flocked(file: Path) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+", encoding="utf-8") as lock_file:
        until = time.monotonic() + _WAIT_SECONDS
        while (holder := _locked_by_other(lock_file, fcntl.LOCK_EX)) is not None:
            # a process that only queries the holder releases the lock at once; a real holder may keep it for weeks
            if time.monotonic() > until:
                raise HeldError(Owner(holder))
            time.sleep(0.02)
        lock_file.truncate(0)
        lock_file.write(str(os.getpid()))
        lock_file.flush()
        yield


def holder_of(file: StatePath) -> Owner | None:
    """The process that holds a lock; None if it is free."""
    if isinstance(file, ObjectPath):
        return owner_of(file)
    try:
        with file.open(encoding="utf-8") as lock_file:
            pid = _locked_by_other(lock_file, fcntl.LOCK_SH)
    except OSError:
        return None
    return None if pid is None else Owner(pid)


def _locked_by_other(file: IO[str], kind: int) -> int | None:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        return int(file.read().strip() or 0)
    return None
