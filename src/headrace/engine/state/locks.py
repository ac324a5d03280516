"""Locks of a state folder: file locks in a local folder, leases on an object store.

The operating system releases a file lock even after `kill -9`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace.core.errors import ProjectError
from headrace.core.files.lock import exclusive_folder_lock, hold_lock, lock_holder, shared_folder_lock
from headrace.core.files.objects import ObjectPath
from headrace.core.files.state_files import StatePath
from headrace.engine.state.lease import Lease, Owner, owner_of

_LOOKUP_SECONDS = 0.3


@contextmanager
def reading(folder: StatePath) -> Iterator[None]:
    """Prevent that files of the folder are merged or removed while they are read. Readers do not exclude each other."""
    if isinstance(folder, ObjectPath):
        yield  # files on an object store are never merged, as readers cannot be locked out
        return
    with shared_folder_lock(folder):
        yield


@contextmanager
def changing(folder: StatePath) -> Iterator[bool]:
    """Yields whether the files of a folder may be merged or removed now: false while they are being read."""
    if isinstance(folder, ObjectPath):
        yield False
        return
    with exclusive_folder_lock(folder) as locked:
        yield locked


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
    # a process that only looks up the holder releases the lock at once; another holder may keep it for weeks
    with hold_lock(file, lambda pid: HeldError(Owner(pid)), timeout=_LOOKUP_SECONDS):
        yield


def holder_of(file: StatePath) -> Owner | None:
    """The process that holds a lock; None if it is free."""
    if isinstance(file, ObjectPath):
        return owner_of(file)
    pid = lock_holder(file)
    return None if pid is None else Owner(pid)
