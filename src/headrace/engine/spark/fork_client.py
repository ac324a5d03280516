"""What Spark starts in place of Python: asks `forkserver` for a process of the same kind, and ends with it.

Run by its path and without the libraries of the environment, as it has to be quick. Where nobody serves it becomes the
Python that was asked for.
"""

from __future__ import annotations

import json
import os
import socket
import sys

_LOST = 1


def ask(place: str, arguments: list[str]) -> int | None:
    """The exit code of the process that was forked; None: nobody serves."""
    request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    data = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(place)
        except OSError:
            return None
        socket.send_fds(server, [len(data).to_bytes(4, "big")], [0, 1, 2])
        server.sendall(data)
        ended = server.recv(1)
        return ended[0] if ended else _LOST


def main(place: str, *arguments: str) -> None:
    """As Python, with these arguments."""
    code = ask(place, list(arguments)) if arguments[:1] == ("-m",) else None
    if code is not None:
        sys.exit(code)
    os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606


if __name__ == "__main__":
    main(*sys.argv[1:])
