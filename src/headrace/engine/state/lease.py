"""A lease: a lock on an object store, as an object with its holder and expiry time.

It is created and renewed with conditional puts, so only one of two competing processes gets it. After `kill -9` it
expires; if the holder was a process of this machine, another process may take it at once. A holder that cannot renew
its lease stops writing before another process can take it.
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

import psutil

from headrace.core.errors import Exit, ProjectError
from headrace.core.files.objects import ObjectPath

SECONDS = 30.0
# the largest difference between the clocks of two machines
_SKEW_SECONDS = 5.0
_TRY_AGAIN_SECONDS = 1.0
# the tag of an empty object; a lease is never empty
_NO_TAG = '"d41d8cd98f00b204e9800998ecf8427e"'


@dataclass(frozen=True)
class Owner:
    """A process that holds a lock; pid 0 if it has not written its pid yet."""

    pid: int
    host: str | None = None
    """Its machine; None for this machine."""

    def __str__(self) -> str:
        return f"pid {self.pid or 'unknown'}" + (f" on {self.host}" if self.host else "")


@dataclass(frozen=True)
class _Claim:
    """The content of the object."""

    id: str
    pid: int
    host: str
    machine: str
    born: float
    """The start time of the process, as pids are reused."""
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
        """Whether another process may take the lease."""
        if self.machine == _machine() and _born(self.pid) != self.born:
            return True
        return time.time() > self.until + _SKEW_SECONDS


def _machine() -> str:
    """Identifies a pid namespace on a booted machine."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return f"{socket.gethostname()}/{uuid.getnode()}"


def _born(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return 0.0


def _read(file: ObjectPath) -> tuple[_Claim, str] | None:
    """The claim and the tag of its object."""
    try:
        tag = file.look().e_tag or ""
        fields: dict[str, Any] = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    # if the object changed between the two calls, its tag differs and a put with this tag fails
    return _Claim(**fields), tag


def owner_of(file: ObjectPath) -> Owner | None:
    """The holder of a lease; None if it is free."""
    current = _read(file)
    return None if current is None or current[0].is_over() else current[0].owner


def _now() -> float:
    """A clock that advances while the process is stopped and while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass
class Lease:
    """A lease that this process holds."""

    file: ObjectPath
    seconds: float = SECONDS
    _id: str = field(default_factory=lambda: uuid.uuid4().hex)
    _tag: str = ""
    _until: float = 0.0
    _taken_by: Owner | None = None
    _ending: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def take(self) -> Owner | None:
        """Take the lease and renew it from now on. Returns the holder if another process has it."""
        began, mine = _now(), _Claim.mine(self._id, self.seconds)
        holder = self._claim(mine)
        if holder is not None:
            return holder
        self._require_conditions(mine)
        self._until = began + self.seconds
        self._thread = threading.Thread(target=self._renew_until_released, name=f"lease of {self.file}", daemon=True)
        self._thread.start()
        return None

    def _require_conditions(self, mine: _Claim) -> None:
        """Refuse a store that ignores the conditions of a put: two engines could both hold the lease."""
        for condition in ({"new": True}, {"instead_of": _NO_TAG}):
            try:
                self.file.put(mine.to_bytes(), **condition)
            except FileExistsError:
                continue
            self.file.unlink()
            raise ProjectError(
                "state-store-unfit",
                f"the object store of {self.file.parent} ignores conditional puts, so state cannot be locked there",
                hint="use a store or a version that supports If-None-Match and If-Match, or a folder",
            )

    def _claim(self, mine: _Claim) -> Owner | None:
        try:
            self._tag = self.file.put(mine.to_bytes(), new=True)
        except FileExistsError:
            current = _read(self.file)
            # a lease that was released in the meantime is free: try again
            return self._claim(mine) if current is None else self._take_over(mine, *current)
        return None

    def _take_over(self, mine: _Claim, claim: _Claim, tag: str) -> Owner | None:
        if claim.id == self._id:  # the response to the first attempt was lost
            self._tag = tag
            return None
        if not claim.is_over():
            return claim.owner
        try:
            self._tag = self.file.put(mine.to_bytes(), instead_of=tag)
        except FileExistsError:  # another process was faster
            return owner_of(self.file) or Owner(0)
        return None

    def _renew_until_released(self) -> None:
        pause = self.seconds / 3
        while not self._ending.wait(pause) and self._taken_by is None:
            try:
                self._renew()
                pause = self.seconds / 3
            except OSError:  # the store is unavailable: `problem` reports it when the lease has expired
                pause = min(_TRY_AGAIN_SECONDS, self.seconds / 3)

    def _renew(self) -> None:
        began = _now()
        try:
            self._tag = self.file.put(_Claim.mine(self._id, self.seconds).to_bytes(), instead_of=self._tag)
        except FileExistsError:
            current = _read(self.file)
            if current is None or current[0].id != self._id:
                self._taken_by = Owner(0) if current is None else current[0].owner
                return
            self._tag = current[1]  # the response to an earlier attempt was lost
            return
        self._until = began + self.seconds

    def problem(self) -> ProjectError | None:
        """Why this process may not write now."""
        if self._taken_by is not None:
            return ProjectError(
                "state-taken",
                f"another engine ({self._taken_by}) has taken over the state in {self.file.parent}",
                hint="this engine did not renew its lease in time and has stopped; the other engine continues",
                exit_code=Exit.CONFLICT,
            )
        if _now() > self._until:
            return ProjectError(
                "state-unreachable",
                f"the object store of {self.file.parent} has not responded for {self.seconds:.0f} s",
                hint="check the object store and the network; the flows then continue on their own",
                exit_code=Exit.TRANSIENT,
            )
        return None

    def release(self) -> None:
        """Release the lease. An expired lease is left alone, as another process may have it already."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
        if self.problem() is None:
            try:
                self.file.unlink()
            except OSError:
                return  # it expires
