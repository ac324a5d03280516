"""Ctrl-C and SIGTERM in commands that run until they are stopped, or that wait for Spark."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_AGAIN_SECONDS = 0.2


@contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM ask for an orderly stop; a second Ctrl-C ends at once."""
    stopping = threading.Event()

    def handle(_number: int, _frame: Any) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    with _handled_by(handle):
        yield stopping


@contextmanager
def cancelling(cancel: Callable[[], None]) -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM end what Spark is asked here, at once.

    PySpark waits for the answer even then, so Spark is told first; by another thread, as the connection of this one is
    taken. It is told again until it has ended: a question may be between two of its jobs when it is told first. What
    becomes of the question is an error or a KeyboardInterrupt: the event tells who sees the former.
    """
    interrupted, ended = threading.Event(), threading.Event()

    def insist() -> None:
        cancel()
        while not ended.wait(_AGAIN_SECONDS):
            cancel()

    def handle(_number: int, _frame: Any) -> None:
        if not interrupted.is_set():
            interrupted.set()
            threading.Thread(target=insist, daemon=True).start()
        raise KeyboardInterrupt

    try:
        with _handled_by(handle):
            yield interrupted
    finally:
        ended.set()


@contextmanager
def _handled_by(handle: Callable[[int, Any], None]) -> Iterator[None]:
    kept = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
