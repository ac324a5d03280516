"""CPU seconds and peak memory of a process and its children."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Collection

import psutil

_SAMPLE_SECONDS = 1.0


def started() -> set[int]:
    """Return the ids of the processes that this process has started so far."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


class Meter:
    """Measures this process, its JVM and its Python workers.

    The CPU time of an ended worker is added to its parent, so the times of children are counted. Those of this process
    are not, because its only child, the JVM, is counted itself. Services and the measurement are excluded.
    """

    def __init__(self, services: Collection[int] = ()) -> None:
        self.peak_mb = 0.0
        self._services = services
        self._own_seconds = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def cpu_seconds(self) -> float:
        """CPU seconds so far."""
        total = -self._own_seconds
        for process in self._tree():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
                if process.pid != os.getpid():
                    total += times.children_user + times.children_system
        return total

    def _tree(self) -> list[psutil.Process]:
        me = psutil.Process()
        return [me, *(one for one in me.children(recursive=True) if one.pid not in self._services)]

    def _sample(self) -> None:
        while not self._done.wait(_SAMPLE_SECONDS):
            used = 0.0
            for process in self._tree():
                with contextlib.suppress(psutil.Error):
                    # proportional: pages that forked workers share count once
                    used += process.memory_full_info().pss / 1e6
            self.peak_mb = max(self.peak_mb, used)
            # reading the memory of a JVM is slow
            self._own_seconds = time.thread_time()

    def close(self) -> None:
        """Stop sampling."""
        self._done.set()
        self._thread.join()
