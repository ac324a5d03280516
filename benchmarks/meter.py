"""What a process and all it started cost: CPU seconds and peak memory."""

from __future__ import annotations

import contextlib
import os
import threading

import psutil

_SAMPLE_SECONDS = 0.2


def _tree() -> list[psutil.Process]:
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


class Meter:
    """Measures this process, its JVM and its Python workers.

    Workers that end take their CPU time to their parent, so children's times are counted except this process's own,
    whose only child, the JVM, is counted itself.
    """

    def __init__(self) -> None:
        self.peak_mb = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def cpu_seconds(self) -> float:
        """CPU seconds so far."""
        total = 0.0
        for process in _tree():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
                if process.pid != os.getpid():
                    total += times.children_user + times.children_system
        return total

    def _sample(self) -> None:
        while not self._done.wait(_SAMPLE_SECONDS):
            used = 0.0
            for process in _tree():
                with contextlib.suppress(psutil.Error):
                    # proportional: pages that workers share with the one they were forked from count once
                    used += process.memory_full_info().pss / 1e6
            self.peak_mb = max(self.peak_mb, used)

    def close(self) -> None:
        """Stop sampling."""
        self._done.set()
        self._thread.join()
