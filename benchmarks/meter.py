"""What a process and all it started cost: CPU seconds and peak memory."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Collection

import psutil

_SAMPLE_SECONDS = 1.0


def started() -> set[int]:
    """Processes that this one has started so far."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


class Meter:
    """Measures this process, its JVM and its Python workers.

    Workers that end take their CPU time to their parent, so children's times are counted except this process's own,
    whose only child, the JVM, is counted itself. Services started before are no part of it, nor is measuring.
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
                    # proportional: pages that workers share with the one they were forked from count once
                    used += process.memory_full_info().pss / 1e6
            self.peak_mb = max(self.peak_mb, used)
            # reading how much memory a JVM has takes the kernel a while
            self._own_seconds = time.thread_time()

    def close(self) -> None:
        """Stop sampling."""
        self._done.set()
        self._thread.join()
