"""Free loopback ports."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from functools import partial

from headrace.testing.services.daemon import await_true

HOST = "127.0.0.1"
# A client that tries to reconnect may hold a loopback port for a moment by connecting to itself.
_PATIENCE = 2.0


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
    listeners = [socket.create_server((HOST, 0)) for name in wanted if name not in kept]
    fresh = iter([listener.getsockname()[1] for listener in listeners])
    for listener in listeners:  # closed together, so that no port is given out twice
        listener.close()
    return {name: kept[name] if name in kept else next(fresh) for name in wanted}
