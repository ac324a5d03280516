"""Reserves the ports of a node before its processes listen on them.

Several processes listen on one port (SO_REUSEPORT), so the operating system would let a second node share the port
silently. So the port is first bound without that option, to check that it is free.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import Any

from headrace.core.errors import Exit, ProjectError


class Port:
    """A port reserved for this node: bound, never listened on, so that it stays reserved while a process restarts."""

    def __init__(self, host: str, port: int, key: str) -> None:
        try:
            self._held = _reserve(host, port)
        except OSError as error:
            raise ProjectError(
                "port-taken",
                f"port {port} of {host} is not available: {error.strerror or error}",
                hint=f"stop the process that uses it, or choose another port: --set {key}=PORT (0: any free port)",
                exit_code=Exit.CONFLICT,
            ) from error
        self.host = host
        self.number: int = self._held.getsockname()[1]

    @property
    def address(self) -> str:
        """The host and port, as in a URL."""
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.number}"

    def wait(self, seconds: float) -> bool:
        """Wait until a process listens on the port; False when none does in time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection((_reachable(self.host), self.number), timeout=1):
                return True
            time.sleep(0.05)
        return False

    def close(self) -> None:
        self._held.close()


def shared(host: str, port: int) -> socket.socket:
    """A socket on a port that other processes of the node also use."""
    # connections of a stopped node may still be closing when the next node starts; it must get the port nevertheless
    return _bound(*_resolve(host, port), socket.SO_REUSEADDR, socket.SO_REUSEPORT)


def _reserve(host: str, port: int) -> socket.socket:
    family, address = _resolve(host, port)
    # SO_REUSEADDR ignores connections of an earlier node; a process that listens on or holds the port still conflicts
    with _bound(family, address, socket.SO_REUSEADDR) as alone:
        address = alone.getsockname()
    return _bound(family, address, socket.SO_REUSEPORT)


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return family, address


def _bound(family: socket.AddressFamily, address: Any, *options: int) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        for option in options:
            bound.setsockopt(socket.SOL_SOCKET, option, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def _reachable(host: str) -> str:
    """An address to connect to: the wildcard address is not one."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
