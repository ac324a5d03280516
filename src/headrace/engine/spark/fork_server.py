"""A process from which all Python processes of Spark are forked, with the libraries they need loaded.

Spark starts one for its workers, one for each stream that Python reads, one for each step that remembers, and some to
ask about these; each would load the same libraries first. What Spark starts instead is `forkclient`, which asks here
for the process it stands for: its environment, folder and standard streams are handed over, and when either ends, so
does the other. Libraries are loaded when the first one is asked for. The server ends with the process that started it,
whose end of its standard input is then closed; what it has forked ends with Spark.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

MODULE = __name__
_PATIENCE = 10.0
_LOST = 1


class ForkServer:
    """Forks what it is asked for."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._loaded = False
        self._watch(0, self._parent_gone)
        self._watch(listener, self._asked)

    def serve(self) -> None:
        """Until the parent is gone."""
        while True:
            for key, _ in self._selector.select():
                # one that was told of beside this one may have ended it
                if self._selector.get_map().get(key.fd) is key:
                    key.data()

    def _watch(self, what: Any, then: Callable[[], None]) -> None:
        self._selector.register(what, selectors.EVENT_READ, then)

    def _parent_gone(self) -> None:
        if not os.read(0, 1):
            os._exit(0)

    def _asked(self) -> None:
        asking, _ = self._listener.accept()
        try:
            asking.settimeout(_PATIENCE)
            request, streams = received(asking)
        except (OSError, ValueError):  # it has ended meanwhile
            asking.close()
            return
        self._load()
        child = os.fork()
        if not child:
            self._leave(asking)
            become(request, streams)
        for stream in streams:
            os.close(stream)
        ended = os.pidfd_open(child)
        self._watch(asking, lambda: self._unwanted(asking, child))
        self._watch(ended, lambda: self._ended(asking, child, ended))

    def _load(self) -> None:
        if not self._loaded:
            from headrace.engine.spark.workers import load

            load()
            self._loaded = True

    def _leave(self, asking: socket.socket) -> None:
        """Let go of what is the server's, in a child."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            elif key.fd:
                os.close(key.fd)
        self._selector.close()
        asking.close()

    def _unwanted(self, asking: socket.socket, child: int) -> None:
        """Who asked for it was ended."""
        self._selector.unregister(asking)
        os.kill(child, signal.SIGTERM)

    def _ended(self, asking: socket.socket, child: int, ended: int) -> None:
        _, status = os.waitpid(child, 0)
        with suppress(KeyError):
            self._selector.unregister(asking)
        self._selector.unregister(ended)
        os.close(ended)
        with suppress(OSError):
            asking.sendall(bytes([os.waitstatus_to_exitcode(status) & 0xFF]))
        asking.close()


def received(asking: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """What is to be run, and its standard streams."""
    data, streams, _, _ = socket.recv_fds(asking, 4, 3)
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        more = asking.recv(1 << 16)
        if not more:
            for stream in streams:
                os.close(stream)
            raise ValueError("half of a request")
        data += more
    return json.loads(data[4:]), streams


def become(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Run a module as Python does with `-m`, in this process."""
    code = _LOST
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        # what a start of Python makes of its environment
        own = [place for place in request["environment"].get("PYTHONPATH", "").split(os.pathsep) if place]
        sys.path[:] = [request["folder"], *own, *(place for place in sys.path[1:] if place not in own)]
        module, *arguments = request["arguments"][1:]
        sys.argv[1:] = arguments
        warnings.filterwarnings("ignore", "'.*' found in sys.modules after import", RuntimeWarning)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # as Python does at its own end
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        for output in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                output.flush()
        os._exit(code & 0xFF)


@cache
def forking_python(folder: Path) -> str:
    """What Spark is to start in place of Python; the server behind it ends with this process."""
    place, command = folder / "python.sock", folder / "python"
    client = [sys.executable, "-IS", str(Path(__file__).with_name("fork_client.py")), str(place)]
    command.write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n', encoding="utf-8")
    command.chmod(0o700)
    # libraries start threads of their own otherwise, which a fork would lose
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    serving = subprocess.Popen(
        [sys.executable, "-m", MODULE, str(place)],
        stdin=subprocess.PIPE,
        stdout=sys.stderr.fileno(),
        env=environment,
        start_new_session=True,
    )
    atexit.register(_end, serving, os.getpid())
    return str(command)


def _end(serving: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner and serving.stdin is not None:
        serving.stdin.close()
        serving.wait()


def main(place: str) -> None:
    """Serve at a socket in the file system."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen(128)
        ForkServer(listener).serve()


if __name__ == "__main__":
    main(sys.argv[1])
