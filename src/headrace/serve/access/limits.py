"""How often one caller may ask: one limit for all processes of a node.

Per caller there is one number, the time at which all that it asked for would be done at its rate; a request is refused
when that is more than a second ahead. The numbers are in a small file that all processes have mapped, so that a caller
whose connections end up at several of them has one limit, not several.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.core.errors import RequestError

_SLOT = struct.Struct("<Qd")
_SLOTS = 4096
_LOOKS = 8
_BURST_S = 1.0


class Rates:
    """What callers have used up. Without a file it counts for this process alone."""

    def __init__(self, file: Path | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        # monotonic time is the machine's, the same in all its processes; after a reboot old entries are far ahead or
        # past, and both are taken for nothing
        self._clock = clock
        self._lock = threading.Lock()
        self._file = None if file is None else _opened(file)
        length = _SLOTS * _SLOT.size
        self._slots = mmap.mmap(-1 if self._file is None else self._file, length)

    def take(self, caller: str, per_second: float) -> None:
        """Count one request; a RequestError says that it is one too many, and when to come back."""
        name = int.from_bytes(hashlib.blake2b(caller.encode(), digest_size=8).digest(), "little") or 1
        # at least one request passes, however low the rate
        burst = max(_BURST_S, 1 / per_second)
        with self._lock, self._alone():
            now = self._clock()
            at, done = self._find(name, now)
            if not now < done <= now + burst:
                done = now
            wait = done + 1 / per_second - now - burst
            if wait <= 1e-9:
                _SLOT.pack_into(self._slots, at, name, done + 1 / per_second)
                return
        raise RequestError(
            "rate-limited",
            f"more than {per_second:g} requests per second",
            status=429,
            hint=f"wait {wait:.3g} s; fewer, larger pages need fewer requests",
            retry_after=wait,
        )

    def close(self) -> None:
        """Let go of the file."""
        self._slots.close()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _find(self, name: int, now: float) -> tuple[int, float]:
        """The caller's slot, or among the next few the one that was free first."""
        free, earliest = 0, float("inf")
        for look in range(_LOOKS):
            at = (name + look) % _SLOTS * _SLOT.size
            found, done = _SLOT.unpack_from(self._slots, at)
            if found == name:
                return at, done
            if done < earliest:
                free, earliest = at, done
        return free, now

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._file is None:
            yield
            return
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)


def _opened(file: Path) -> int:
    file.parent.mkdir(parents=True, exist_ok=True)
    opened = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(opened, _SLOTS * _SLOT.size)
    return opened
