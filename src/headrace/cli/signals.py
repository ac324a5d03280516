"""Ctrl-C and SIGTERM of commands that run until they are told to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM ask for an orderly stop; a second Ctrl-C ends at once."""
    stopping = threading.Event()

    def handle(_number: int, _frame: Any) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    kept = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
