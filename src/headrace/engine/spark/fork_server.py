"""The fork server: forks all Python processes of Spark, with their libraries already loaded.

Spark starts Python processes for its workers, for each stream that Python reads, for each stateful step, and some to
query these; each of them would load the same libraries first. Spark starts `fork_client` instead, which requests a
forked process from this server and passes on its environment, folder and standard streams. Client and forked process
end together. The server loads the libraries at the first request. It ends when its standard input is closed, that is
with the process that started it; the forked processes end with Spark.
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
_TIMEOUT = 10.0
_LOST = 1


class ForkServer:
    """Forks a process for each request."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._loaded = False
        self._watch(0, self._on_parent_gone)
        self._watch(listener, self._on_request)

    def serve(self) -> None:
        """Serve until the parent is gone."""
        while True:
            for key, _ in self._selector.select():
                # an earlier event of the same round may have removed this one
                if self._selector.get_map().get(key.fd) is key:
                    key.data()

    def _watch(self, file: Any, callback: Callable[[], None]) -> None:
        self._selector.register(file, selectors.EVENT_READ, callback)

    def _on_parent_gone(self) -> None:
        if not os.read(0, 1):
            os._exit(0)

    def _on_request(self) -> None:
        client, _ = self._listener.accept()
        try:
            client.settimeout(_TIMEOUT)
            request, streams = receive_request(client)
        except (OSError, ValueError):  # the client has ended meanwhile
            client.close()
            return
        self._load()
        child = os.fork()
        if not child:
            self._release(client)
            run_request(request, streams)
        for stream in streams:
            os.close(stream)
        exited = os.pidfd_open(child)
        self._watch(client, lambda: self._on_client_gone(client, child))
        self._watch(exited, lambda: self._on_exit(client, child, exited))

    def _load(self) -> None:
        if not self._loaded:
            # not at the top: a process that only starts the server does not need the libraries
            from headrace.engine.spark.workers import load

            load()
            self._loaded = True

    def _release(self, client: socket.socket) -> None:
        """Close the files of the server, in a child."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            elif key.fd:
                os.close(key.fd)
        self._selector.close()
        client.close()

    def _on_client_gone(self, client: socket.socket, child: int) -> None:
        self._selector.unregister(client)
        os.kill(child, signal.SIGTERM)

    def _on_exit(self, client: socket.socket, child: int, exited: int) -> None:
        _, status = os.waitpid(child, 0)
        with suppress(KeyError):
            self._selector.unregister(client)
        self._selector.unregister(exited)
        os.close(exited)
        with suppress(OSError):
            client.sendall(bytes([os.waitstatus_to_exitcode(status) & 0xFF]))
        client.close()


def receive_request(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The request and the standard streams of the client."""
    data, streams, _, _ = socket.recv_fds(client, 4, 3)
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        more = client.recv(1 << 16)
        if not more:
            for stream in streams:
                os.close(stream)
            raise ValueError("incomplete request")
        data += more
    return json.loads(data[4:]), streams


def run_request(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Run a module in this process as `python -m` does."""
    code = _LOST
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        # a starting Python reads its search path from the environment; this one has started before
        own = [folder for folder in request["environment"].get("PYTHONPATH", "").split(os.pathsep) if folder]
        sys.path[:] = [request["folder"], *own, *(folder for folder in sys.path[1:] if folder not in own)]
        module, *arguments = request["arguments"][1:]
        sys.argv[1:] = arguments
        warnings.filterwarnings("ignore", "'.*' found in sys.modules after import", RuntimeWarning)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # as Python does when it exits
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        for output in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                output.flush()
        os._exit(code & 0xFF)


@cache
def start_fork_server(folder: Path) -> str:
    """Start the server, which ends with this process. Returns the command that Spark starts in place of Python."""
    address, command = folder / "python.sock", folder / "python"
    client = [sys.executable, "-IS", str(Path(__file__).with_name("fork_client.py")), str(address)]
    command.write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n', encoding="utf-8")
    command.chmod(0o700)
    # otherwise libraries start threads, which do not survive a fork
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, "-m", MODULE, str(address)],
        stdin=subprocess.PIPE,
        stdout=sys.stderr.fileno(),
        env=environment,
        start_new_session=True,
    )
    atexit.register(_end, server, os.getpid())
    return str(command)


def _end(server: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner and server.stdin is not None:
        server.stdin.close()
        server.wait()


def main(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(128)
        ForkServer(listener).serve()


if __name__ == "__main__":
    main(sys.argv[1])
