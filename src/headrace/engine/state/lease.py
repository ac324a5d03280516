"""A lock on an object store: an object that says who holds it and until when.

It is made and renewed with conditional puts, so of two who want it one gets it. Nobody releases it after kill -9: it
ends by itself, or at once when its holder was a process of this machine that is no more. A holder that cannot renew it
stops writing before anybody else may take it.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.core.errors import Exit, ProjectError
from headrace.core.files.objects import ObjectPath

SECONDS = 30.0
# how far the clocks of two machines may be apart
_SKEW_SECONDS = 5.0
_TRY_AGAIN_SECONDS = 1.0
# the tag of an empty object, which a lock never is
_NO_TAG = '"d41d8cd98f00b204e9800998ecf8427e"'


@dataclass(frozen=True)
class Owner:
    """A process that holds a lock; the id is 0 when it has not said it yet."""

    pid: int
    host: str | None = None
    """The machine it runs on, when that is not this one."""

    def __str__(self) -> str:
        return f"pid {self.pid or 'unknown'}" + (f" on {self.host}" if self.host else "")


@dataclass(frozen=True)
class _Claim:
    """What is in the object."""

    id: str
    pid: int
    host: str
    machine: str
    born: float
    """When the process began: process ids are used again."""
    until: float

    @staticmethod
    def mine(id: str, seconds: float) -> _Claim:
        return _Claim(id, os.getpid(), socket.gethostname(), _machine(), _born(os.getpid()), time.time() + seconds)

    def to_bytes(self) -> bytes:
        return json.dumps(self.__dict__).encode()

    @property
    def owner(self) -> Owner:
        return Owner(self.pid, None if self.machine == _machine() else self.host)

    def is_over(self) -> bool:
        """Whether another may take the lock."""
        if self.machine == _machine() and _born(self.pid) != self.born:
            return True
        return time.time() > self.until + _SKEW_SECONDS


def _machine() -> str:
    """What tells apart all places in which process ids are counted."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return f"{socket.gethostname()}/{uuid.getnode()}"


def _born(pid: int) -> float:
    import psutil

    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return 0.0


def _read(file: ObjectPath) -> tuple[_Claim, str] | None:
    """Who claims the lock, and the tag of that object."""
    try:
        tag = file.look().e_tag or ""
        said: dict[str, Any] = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    # one that was changed between the two has another tag, and cannot be replaced by this one
    return _Claim(**said), tag


def owner_of(file: ObjectPath) -> Owner | None:
    """Who holds a lock; None when nobody does."""
    found = _read(file)
    return None if found is None or found[0].is_over() else found[0].owner


def _now() -> float:
    """Goes on while the process is stopped and while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass
class Lease:
    """The lock as this process holds it."""

    file: ObjectPath
    seconds: float = SECONDS
    _id: str = field(default_factory=lambda: uuid.uuid4().hex)
    _tag: str = ""
    _until: float = 0.0
    _taken_by: Owner | None = None
    _ending: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def take(self) -> Owner | None:
        """Take it, and renew it from now on; gives its holder instead when there is one."""
        began, mine = _now(), _Claim.mine(self._id, self.seconds)
        other = self._claim(mine)
        if other is not None:
            return other
        self._require_conditions(mine)
        self._until = began + self.seconds
        self._thread = threading.Thread(target=self._keep, name=f"lease of {self.file}", daemon=True)
        self._thread.start()
        return None

    def _require_conditions(self, mine: _Claim) -> None:
        """Refuse a store that takes a conditional put for a plain one: there two engines could both have the lock."""
        for condition in ({"new": True}, {"instead_of": _NO_TAG}):
            try:
                self.file.put(mine.to_bytes(), **condition)
            except FileExistsError:
                continue
            self.file.unlink()
            raise ProjectError(
                "state-store-unfit",
                f"the object store of {self.file.parent} does not heed conditional puts: nothing can be locked there",
                hint="use a store or a version that knows If-None-Match and If-Match, or a folder",
            )

    def _claim(self, mine: _Claim) -> Owner | None:
        try:
            self._tag = self.file.put(mine.to_bytes(), new=True)
        except FileExistsError:
            found = _read(self.file)
            # one that was given back in this very moment is asked for again
            return self._claim(mine) if found is None else self._take_over(mine, *found)
        return None

    def _take_over(self, mine: _Claim, claim: _Claim, tag: str) -> Owner | None:
        if claim.id == self._id:  # the answer to the first try was lost
            self._tag = tag
            return None
        if not claim.is_over():
            return claim.owner
        try:
            self._tag = self.file.put(mine.to_bytes(), instead_of=tag)
        except FileExistsError:  # another was faster
            return owner_of(self.file) or Owner(0)
        return None

    def _keep(self) -> None:
        pause = self.seconds / 3
        while not self._ending.wait(pause) and self._taken_by is None:
            try:
                self._renew()
                pause = self.seconds / 3
            except OSError:  # the store is away: `problem` says it when the time is over
                pause = min(_TRY_AGAIN_SECONDS, self.seconds / 3)

    def _renew(self) -> None:
        began = _now()
        try:
            self._tag = self.file.put(_Claim.mine(self._id, self.seconds).to_bytes(), instead_of=self._tag)
        except FileExistsError:
            found = _read(self.file)
            if found is None or found[0].id != self._id:
                self._taken_by = Owner(0) if found is None else found[0].owner
                return
            self._tag = found[1]  # the answer to an earlier try was lost
            return
        self._until = began + self.seconds

    def problem(self) -> ProjectError | None:
        """Why this process may not write now."""
        if self._taken_by is not None:
            return ProjectError(
                "state-taken",
                f"another engine ({self._taken_by}) has taken over the state in {self.file.parent}",
                hint="this one was away for too long; it has stopped, and the other goes on",
                exit_code=Exit.CONFLICT,
            )
        if _now() > self._until:
            return ProjectError(
                "state-unreachable",
                f"the state in {self.file.parent} has not answered for {self.seconds:.0f} s",
                hint="check the object store and the network; the flows go on by themselves",
                exit_code=Exit.TRANSIENT,
            )
        return None

    def give_back(self) -> None:
        """Let go of it. One that is over is left alone: it may be another's already."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
        if self.problem() is None:
            try:
                self.file.unlink()
            except OSError:
                return  # it ends by itself
