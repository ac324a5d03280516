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
    """Set an event on Ctrl-C and SIGTERM, for an orderly stop; a second Ctrl-C ends the command at once."""
    stopping = threading.Event()

    def handle(_number: int, _frame: Any) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    with _handled_by(handle):
        yield stopping


@contextmanager
def cancelling(cancel: Callable[[], None]) -> Iterator[threading.Event]:
    """Cancel a Spark query at once on Ctrl-C and SIGTERM.

    PySpark waits for the result even then, so the query is cancelled first. Another thread calls `cancel`, because the
    query uses this thread's connection. It calls `cancel` again until the query has ended, because the query may be
    between two jobs. The query ends with an error or a KeyboardInterrupt; the event is set in both cases.
    """
    interrupted, ended = threading.Event(), threading.Event()

    def cancel_until_ended() -> None:
        cancel()
        while not ended.wait(_AGAIN_SECONDS):
            cancel()

    def handle(_number: int, _frame: Any) -> None:
        if not interrupted.is_set():
            interrupted.set()
            threading.Thread(target=cancel_until_ended, daemon=True).start()
        raise KeyboardInterrupt

    try:
        with _handled_by(handle):
            yield interrupted
    finally:
        ended.set()


@contextmanager
def _handled_by(handle: Callable[[int, Any], None]) -> Iterator[None]:
    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
