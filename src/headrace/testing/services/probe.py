"""Asking a server on loopback whether it is ready: an answer, or None while it gives none."""

from __future__ import annotations

import http.client
import socket

from headrace.testing.services.ports import HOST

_PATIENCE = 2.0


def accepts(port: int) -> bool:
    """Whether anything listens."""
    try:
        with socket.create_connection((HOST, port), timeout=_PATIENCE):
            return True
    except OSError:
        return False


def ask(port: int, request: bytes) -> bytes | None:
    """Send bytes and give what comes back first."""
    try:
        with socket.create_connection((HOST, port), timeout=_PATIENCE) as connection:
            connection.sendall(request)
            return connection.recv(4096)
    except OSError:
        return None


def http_get(port: int, path: str, patience: float = _PATIENCE) -> tuple[int, bytes] | None:
    """Status and body of a GET request."""
    connection = http.client.HTTPConnection(HOST, port, timeout=patience)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
