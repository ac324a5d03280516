"""The client of the fork server, which Spark starts in place of Python. It ends with the forked process.

It runs by its path and without site packages, to start fast. Without a server it becomes an ordinary Python.
"""

from __future__ import annotations

import json
import os
import socket
import sys

_LOST = 1


def fork(address: str, arguments: list[str]) -> int | None:
    """Fork a process and wait for its exit code; None when no server listens."""
    request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    data = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(address)
        except OSError:
            return None
        socket.send_fds(server, [len(data).to_bytes(4, "big")], [0, 1, 2])
        server.sendall(data)
        exit_code = server.recv(1)
        return exit_code[0] if exit_code else _LOST


def main(address: str, *arguments: str) -> None:
    code = fork(address, list(arguments)) if arguments[:1] == ("-m",) else None
    if code is not None:
        sys.exit(code)
    os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606


if __name__ == "__main__":
    main(*sys.argv[1:])
