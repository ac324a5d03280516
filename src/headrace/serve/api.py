"""The API processes of a node: Granian and its workers. `python -m headrace.serve.api` is started by the node."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import threading
from multiprocessing.process import BaseProcess
from typing import Any

from headrace.core.lifeline import STOP_SECONDS, end_with_parent
from headrace.serve.settings import Settings
from headrace.serve.suspicion import CRASHES, suspect

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 0.2
_BACKLOG = 2048
_AT_ONCE = 1024
"""Requests that a worker has under way; further ones wait in the backlog of its socket."""


def app() -> Any:
    """What a worker serves, made in the worker itself."""
    from headrace.serve.app import create_app

    end_with_parent()
    return create_app(Settings.here())


def main() -> None:
    """Serve until SIGTERM; a worker that dies is replaced."""
    from granian import Granian
    from granian.constants import Interfaces
    from granian.log import LogLevels

    end_with_parent()
    settings = Settings.here()
    spec = settings.spec
    threading.Thread(target=_watch_workers, args=(settings,), name="workers", daemon=True).start()
    Granian(
        "headrace.serve.api:app",
        factory=True,
        interface=Interfaces.ASGI,
        address=spec.host,
        port=spec.port,
        workers=spec.workers,
        backlog=_BACKLOG,
        backpressure=_AT_ONCE,
        respawn_failed_workers=True,
        workers_kill_timeout=int(STOP_SECONDS * 0.7),
        log_level=LogLevels.warning,
    ).serve()


def _watch_workers(settings: Settings) -> None:
    """A worker that ended by a crash of native code may have read a damaged store: have that looked into."""
    known: set[BaseProcess] = set()
    pause = threading.Event()
    while not pause.wait(_LOOK_SECONDS):
        known.update(multiprocessing.active_children())
        over = {worker for worker in known if worker.exitcode is not None}
        for worker in over:
            if -(worker.exitcode or 0) in CRASHES:
                name = signal.Signals(-(worker.exitcode or 0)).name
                _LOG.warning("an API worker was ended by %s: the stores are looked through", name)
                suspect(settings.store, f"an API worker was ended by {name}")
        known -= over


if __name__ == "__main__":
    main()
