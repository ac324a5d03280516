"""Child processes that end when their parent ends.

The standard input of a child is a pipe, and only the parent holds its other end. When the pipe is closed, the parent
has ended, and the child stops. Even `kill -9` of the parent leaves no process behind.
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
"""How long a process may take to end after SIGTERM."""

stopping = threading.Event()
"""Set shortly before a process is terminated, so that long-lived connections such as live streams close."""

_callbacks: list[Callable[[], None]] = []


def run_until_stopped(work: Callable[[threading.Event], None]) -> int:
    """Run `work` until a signal arrives or the parent ends; return the exit code.

    `work` returns when its event is set. A ProjectError is printed, and gives the exit code.
    """
    stopped = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        # in a thread: the interrupted main thread may hold the lock of the event
        threading.Thread(target=stopped.set, daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    end_with_parent()
    try:
        work(stopped)
    except ProjectError as error:
        print(error, file=sys.stderr, flush=True)
        return int(error.exit_code)
    return 0


def end_with_parent() -> None:
    """Stop this process when its parent ends, and handle the announcement before it. Call once, in the main thread."""
    signal.signal(signal.SIGUSR1, _on_announcement)
    threading.Thread(target=_watch, name="lifeline", daemon=True).start()


def on_stop(callback: Callable[[], None]) -> None:
    """Register a callback that runs in a separate thread shortly before the process is terminated."""
    _callbacks.append(callback)


def _on_announcement(_number: int, _frame: FrameType | None) -> None:
    # in a thread: the interrupted main thread may hold the lock of the event
    threading.Thread(target=_announce, name="about to end", daemon=True).start()


def _announce() -> None:
    stopping.set()
    for callback in _callbacks:
        callback()


def _watch() -> None:
    while _pipe_is_open():
        pass
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGTERM)
    # no parent is left that could kill a process that does not stop
    threading.Event().wait(STOP_SECONDS)
    os._exit(1)


def _pipe_is_open() -> bool:
    try:
        return bool(os.read(0, 1024))
    except OSError:
        return False
