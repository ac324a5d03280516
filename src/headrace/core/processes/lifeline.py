"""How the processes of a node live and end together.

A child's standard input is a pipe whose other end only its parent holds. When that is closed, for whatever reason, the
parent is gone, and the child stops by itself: no kill -9 leaves a process behind.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from headrace.core.errors import ProjectError

STOP_SECONDS = 10.0
"""How long a process may take to end after it was asked to."""

stopping = threading.Event()
"""Set a moment before a process is asked to end: what is open for long, such as a live stream, closes now."""

_callbacks: list[Callable[[], None]] = []


def live(work: Callable[[threading.Event], None]) -> int:
    """Be a process that works until it is told to stop, or its parent is gone; gives its exit code."""
    told = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        # not here: the main thread may hold the lock of the very event
        threading.Thread(target=told.set, daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    end_with_parent()
    try:
        work(told)
    except ProjectError as error:
        print(error, file=sys.stderr, flush=True)
        return int(error.exit_code)
    return 0


def end_with_parent() -> None:
    """Stop this process when its parent is gone, and heed the warning before an end. For the main thread, once."""
    signal.signal(signal.SIGUSR1, _warned)
    threading.Thread(target=_watch, name="lifeline", daemon=True).start()


def on_stop(callback: Callable[[], None]) -> None:
    """Call this, in a thread of its own, when the process is about to end."""
    _callbacks.append(callback)


def _warned(_number: int, _frame: FrameType | None) -> None:
    # not here: the main thread may hold the lock of the very event
    threading.Thread(target=_announce, name="about to end", daemon=True).start()


def _announce() -> None:
    stopping.set()
    for callback in _callbacks:
        callback()


def _watch() -> None:
    while _more():
        pass
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGTERM)
    # whatever holds it up: nobody is left to end it
    threading.Event().wait(STOP_SECONDS)
    os._exit(1)


def _more() -> bool:
    try:
        return bool(os.read(0, 1024))
    except OSError:
        return False
