"""Rate limits: one limit per caller for all processes of a node.

Per caller there is one number: the time at which its requests so far would be done at its rate. A request is rejected
when that time is more than a second ahead. The numbers are in a small file that all processes map, so that a caller
whose connections reach several processes has one limit, not several.
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
_PROBES = 8
_BURST_S = 1.0


class Rates:
    """The requests of all callers. Without a file it counts for this process alone."""

    def __init__(self, file: Path | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        # monotonic time is the same in all processes of the machine; after a reboot old entries are far ahead or in the
        # past, and both are ignored
        self._clock = clock
        self._lock = threading.Lock()
        self._file = None if file is None else _open_file(file)
        length = _SLOTS * _SLOT.size
        self._slots = mmap.mmap(-1 if self._file is None else self._file, length)

    def take(self, caller: str, per_second: float) -> None:
        """Count a request; RequestError with the time to wait when it exceeds the rate."""
        name = int.from_bytes(hashlib.blake2b(caller.encode(), digest_size=8).digest(), "little") or 1
        # at least one request is allowed, however low the rate
        burst = max(_BURST_S, 1 / per_second)
        with self._lock, self._exclusive():
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
            hint=f"wait {wait:.3g} s; larger pages need fewer requests",
            retry_after=wait,
        )

    def close(self) -> None:
        self._slots.close()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _find(self, name: int, now: float) -> tuple[int, float]:
        """The caller's slot, or of the next few slots the one with the oldest entry."""
        free, earliest = 0, float("inf")
        for offset in range(_PROBES):
            at = (name + offset) % _SLOTS * _SLOT.size
            slot_name, done = _SLOT.unpack_from(self._slots, at)
            if slot_name == name:
                return at, done
            if done < earliest:
                free, earliest = at, done
        return free, now

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        if self._file is None:
            yield
            return
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)


def _open_file(file: Path) -> int:
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(descriptor, _SLOTS * _SLOT.size)
    return descriptor
