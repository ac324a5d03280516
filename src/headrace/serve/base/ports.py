"""Ports of a node: found, tried and held before its processes listen on them.

Several processes listen on one port (SO_REUSEPORT), so the operating system would let a second node share it in
silence: whether the port is free is asked without that, first.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import Any

from headrace.core.errors import Exit, ProjectError


class Port:
    """A port that is this node's: bound here, never listened on, so nobody else gets it while a process restarts."""

    def __init__(self, host: str, port: int, key: str) -> None:
        try:
            self._held = _held(host, port)
        except OSError as error:
            raise ProjectError(
                "port-taken",
                f"port {port} of {host} is not to be had: {error.strerror or error}",
                hint=f"stop what listens there, or choose another: --set {key}=PORT (0: any free one)",
                exit_code=Exit.CONFLICT,
            ) from error
        self.host = host
        self.number: int = self._held.getsockname()[1]

    @property
    def address(self) -> str:
        """As it stands in a URL."""
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.number}"

    def wait(self, seconds: float) -> bool:
        """Whether a process listens there before the time is over."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection((_reachable(self.host), self.number), timeout=1):
                return True
            time.sleep(0.05)
        return False

    def close(self) -> None:
        """Let go of it."""
        self._held.close()


def shared(host: str, port: int) -> socket.socket:
    """A socket at a port that other processes of the node have as well."""
    # its connections may still be winding down when the next node comes, which must get the port nevertheless
    return _bound(*_found(host, port), socket.SO_REUSEADDR, socket.SO_REUSEPORT)


def _held(host: str, port: int) -> socket.socket:
    family, address = _found(host, port)
    # connections of a former node are no reason to refuse; one that listens, or holds the port, is still found
    with _bound(family, address, socket.SO_REUSEADDR) as alone:
        address = alone.getsockname()
    return _bound(family, address, socket.SO_REUSEPORT)


def _found(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return family, address


def _bound(family: socket.AddressFamily, address: Any, *options: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        for option in options:
            made.setsockopt(socket.SOL_SOCKET, option, 1)
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made


def _reachable(host: str) -> str:
    """An address to knock at: one cannot connect to all of them."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
