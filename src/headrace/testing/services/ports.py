"""Free loopback ports."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from headrace.testing.services.daemon import await_true

HOST = "127.0.0.1"
# A server that has just ended may hold its port for a moment.
_PATIENCE = 2.0
_LOWEST = 10_000
_ENOUGH = 1_000


def is_free(port: int) -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT is no obstacle
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
    return True


def choose(names: Iterable[str], remembered: Mapping[str, int]) -> dict[str, int]:
    """A free port per name: the one it had before where that is still free, so that clients find it again."""
    wanted = list(names)
    known = {name: remembered[name] for name in wanted if name in remembered}
    kept = {name: port for name, port in known.items() if await_true(partial(is_free, port), _PATIENCE)}
    listeners = [_listen() for name in wanted if name not in kept]
    fresh = iter([listener.getsockname()[1] for listener in listeners])
    for listener in listeners:  # closed together, so that no port is given out twice
        listener.close()
    return {name: kept[name] if name in kept else next(fresh) for name in wanted}


def _listen() -> socket.socket:
    """On a port that the system gives to no client: one of those may be taken while its server is down for a moment,
    even by a client that tries to reach this very server and connects to itself."""
    ports = range(_LOWEST, _first_for_clients())
    for _ in range(_ENOUGH if len(ports) > _ENOUGH else 0):
        try:
            return socket.create_server((HOST, secrets.choice(ports)))
        except OSError:
            continue
    return socket.create_server((HOST, 0))


def _first_for_clients() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 0
