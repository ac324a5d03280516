"""Locks of a state folder: of a local one the operating system releases them even after kill -9, on an object store
they are leases."""

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

_ASKING_SECONDS = 0.3


@contextmanager
def reading(folder: StatePath) -> Iterator[None]:
    """While its files are listed and read: nobody merges or removes them meanwhile. Any number may read at once."""
    if isinstance(folder, ObjectPath):
        yield  # where nobody can be asked to wait, files are never merged
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
    """Whether the files of a folder may be merged or removed now: false while somebody reads or may read them."""
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
    with _flocked(file):
        yield


@contextmanager
def _flocked(file: Path) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+", encoding="utf-8") as held:
        until = time.monotonic() + _ASKING_SECONDS
        while (holder := _locked_by_other(held, fcntl.LOCK_EX)) is not None:
            # somebody who only asks who holds it lets go at once; another holder may not do so for weeks
            if time.monotonic() > until:
                raise HeldError(Owner(holder))
            time.sleep(0.02)
        held.truncate(0)
        held.write(str(os.getpid()))
        held.flush()
        yield


def holder_of(file: StatePath) -> Owner | None:
    """The process that holds a lock; None when nobody does."""
    if isinstance(file, ObjectPath):
        return owner_of(file)
    try:
        with file.open(encoding="utf-8") as held:
            pid = _locked_by_other(held, fcntl.LOCK_SH)
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
