"""A port is held for all processes of a node."""

from __future__ import annotations

import socket

import pytest

from headrace.core.errors import ProjectError
from headrace.serve.base.ports import Port, shared


def test_a_port_is_held_and_another_node_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        with pytest.raises(ProjectError) as raised:
            Port("127.0.0.1", taken, "serve.port")
    assert raised.value.code == "port-taken"
    port = Port("127.0.0.1", 0, "serve.port")
    with pytest.raises(ProjectError):
        Port("127.0.0.1", port.number, "serve.port")
    assert not port.wait(0.1)
    with socket.create_server(("127.0.0.1", port.number), reuse_port=True):
        assert port.wait(5)
    port.close()
    assert port.address == f"127.0.0.1:{port.number}"


def test_connections_that_wind_down_do_not_keep_a_port() -> None:
    port = Port("127.0.0.1", 0, "serve.port")
    with shared("127.0.0.1", port.number) as server:
        server.listen()
        with socket.create_connection(("127.0.0.1", port.number)) as caller:
            server.accept()[0].close()  # who closes first has to wait
            assert caller.recv(1) == b""
    port.close()
    Port("127.0.0.1", port.number, "serve.port").close()
