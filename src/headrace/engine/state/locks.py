"""Locks of a state folder: of a local one the operating system releases them even after kill -9, on an object store
they are leases."""

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
    """Hold off merging and removing of a folder's files while they are listed and read. Readers do not exclude each
    other."""
    if isinstance(folder, ObjectPath):
        yield  # files of an object store are never merged
        return
    with shared_folder_lock(folder):
        yield


@contextmanager
def changing(folder: StatePath) -> Iterator[bool]:
    """Whether the files of a folder may be merged or removed now: false while another process may read them."""
    if isinstance(folder, ObjectPath):
        yield False
        return
    with exclusive_folder_lock(folder) as locked:
        yield locked


class HeldError(Exception):
    """A lock belongs to another process, which is the argument."""

    def __init__(self, owner: Owner) -> None:
        super().__init__(str(owner))
        self.owner = owner


@dataclass
class Fence:
    """Whether the locks of this process still hold: a lease may be lost, then nothing may be written any more."""

    _leases: list[Lease] = field(default_factory=list)

    def add(self, lease: Lease) -> None:
        """Look after one more."""
        self._leases.append(lease)

    def remove(self, lease: Lease) -> None:
        """It is no longer needed."""
        self._leases.remove(lease)

    def problem(self) -> ProjectError | None:
        """What was lost."""
        return next((found for lease in self._leases if (found := lease.problem())), None)

    def check(self) -> None:
        """Raise it."""
        found = self.problem()
        if found is not None:
            raise found


@contextmanager
def holding(file: StatePath, fence: Fence) -> Iterator[None]:
    """Hold a lock, which then has this process's id in it; HeldError when another process does."""
    if isinstance(file, ObjectPath):
        lease = Lease(file)
        other = lease.take()
        if other is not None:
            raise HeldError(other)
        fence.add(lease)
        try:
            yield
        finally:
            fence.remove(lease)
            lease.give_back()
        return
    # a process that only looks up the holder releases the lock at once; another holder may keep it for weeks
    with hold_lock(file, lambda pid: HeldError(Owner(pid)), timeout=_LOOKUP_SECONDS):
        yield


def holder_of(file: StatePath) -> Owner | None:
    """The process that holds a lock; None when it is free."""
    if isinstance(file, ObjectPath):
        return owner_of(file)
    pid = lock_holder(file)
    return None if pid is None else Owner(pid)
