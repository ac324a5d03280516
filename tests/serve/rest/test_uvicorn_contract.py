"""The internals of uvicorn that `serve/rest/connection.py` and `serve/rest/api.py` use, and their behaviour.

If a test fails after an upgrade of uvicorn, review both modules before raising the version limit in pyproject.toml.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httptools
import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

ROOT = Path(__file__).parents[3]
REQUEST = b"GET /films/5 HTTP/1.1\r\nHost: localhost\r\nX-One: 1\r\n\r\n"


async def application(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


class RecordingTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.reading = True

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 5)}.get(name, default)


def on_loop(test: Callable[[HttpToolsProtocol, RecordingTransport], Any]) -> None:
    async def run() -> None:
        config = uvicorn.Config(application, log_config=None, lifespan="off")
        config.load()
        protocol = HttpToolsProtocol(config, ServerState(), {}, _loop=asyncio.get_running_loop())
        transport = RecordingTransport()
        protocol.connection_made(transport)
        result = test(protocol, transport)
        if inspect.isawaitable(result):
            await result

    asyncio.run(run())


def parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_the_installed_version_is_within_the_limit() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (limit,) = [entry for entry in project["dependencies"] if re.match(r"uvicorn\b", entry)]
    assert "<" in limit, "the version of uvicorn must have an upper limit"
    upper = tuple(int(part) for part in limit.partition("<")[2].split("."))
    assert tuple(int(part) for part in version("uvicorn").split(".")[: len(upper)]) < upper


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("connection_made", ["self", "transport"]),
        ("data_received", ["self", "data"]),
        ("on_message_begin", ["self"]),
        ("on_headers_complete", ["self"]),
        ("on_response_complete", ["self"]),
        ("timeout_keep_alive_handler", ["self"]),
        ("send_400_response", ["self", "msg"]),
    ],
)
def test_methods_that_are_overridden_or_called(name: str, expected: list[str]) -> None:
    assert parameters(getattr(HttpToolsProtocol, name)) == expected


def test_a_server_is_built_from_a_config_and_lists_its_connections() -> None:
    assert {
        "loop", "http", "ws", "ws_max_size", "ws_ping_interval", "ws_per_message_deflate", "lifespan", "interface",
        "log_config", "log_level", "access_log", "proxy_headers", "server_header", "backlog", "timeout_keep_alive",
        "timeout_graceful_shutdown", "callback_notify", "timeout_notify",
    } <= set(parameters(uvicorn.Config))  # fmt: skip
    assert parameters(uvicorn.Server.run) == ["self", "sockets"]
    assert parameters(uvicorn.Server.serve) == ["self", "sockets"]
    server = uvicorn.Server(uvicorn.Config(application, log_config=None))
    assert isinstance(server.server_state, ServerState)
    assert server.server_state.connections == set()
    assert isinstance(server.server_state.default_headers, list)


def test_a_new_connection_has_the_state_that_is_used() -> None:
    def check(protocol: HttpToolsProtocol, transport: RecordingTransport) -> None:
        assert protocol in protocol.server_state.connections
        assert protocol.transport is transport
        assert protocol.loop is asyncio.get_running_loop()
        assert protocol.client == ("127.0.0.1", 5)
        assert protocol.cycle is None
        assert not protocol.pipeline
        assert isinstance(protocol.flow, FlowControl)
        assert protocol.flow.write_paused is False
        assert protocol.app is protocol.config.loaded_app

    on_loop(check)


def test_the_transport_can_be_replaced_after_the_connection_is_made() -> None:
    """Responses are written to `transport`; only flow control keeps the original one."""

    async def check(protocol: HttpToolsProtocol, transport: RecordingTransport) -> None:
        replacement = RecordingTransport()
        protocol.transport = replacement
        protocol.data_received(REQUEST)
        await asyncio.gather(*protocol.tasks)
        assert replacement.written.startswith(b"HTTP/1.1 204")
        assert transport.written == b""
        protocol.flow.pause_reading()
        assert not transport.reading
        protocol.flow.resume_reading()
        assert transport.reading

    on_loop(check)


def test_the_request_is_complete_in_on_headers_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def on_headers_complete(self: HttpToolsProtocol) -> None:
        parser = self.parser
        assert isinstance(parser, httptools.HttpRequestParser)
        seen.append((parser.get_method(), parser.get_http_version(), parser.should_keep_alive()))
        seen.append((self.url, self.headers, self.expect_100_continue, parser.should_upgrade()))
        self.cycle = type("Completed", (), {"response_complete": True, "message_event": asyncio.Event()})()

    monkeypatch.setattr(HttpToolsProtocol, "on_headers_complete", on_headers_complete)

    def check(protocol: HttpToolsProtocol, transport: RecordingTransport) -> None:
        protocol.data_received(REQUEST)
        assert seen == [
            (b"GET", "1.1", True),
            (b"/films/5", [(b"host", b"localhost"), (b"x-one", b"1")], False, False),
        ]
        # the rest of a request whose cycle is complete is ignored, and the connection stays usable
        protocol.on_body(b"ignored")
        protocol.on_message_complete()
        assert not protocol.tasks
        protocol.connection_lost(None)
        assert transport.closed

    on_loop(check)


def test_a_cycle_says_when_its_response_is_complete() -> None:
    async def check(protocol: HttpToolsProtocol, _transport: RecordingTransport) -> None:
        protocol.data_received(REQUEST)
        assert isinstance(protocol.cycle, RequestResponseCycle)
        assert protocol.cycle.response_complete is False
        assert isinstance(protocol.cycle.message_event, asyncio.Event)
        await asyncio.gather(*protocol.tasks)
        assert protocol.cycle.response_complete is True

    on_loop(check)


def test_the_end_of_a_response_is_reported_to_the_method_of_the_subclass() -> None:
    ended: list[bool] = []

    async def check(protocol: HttpToolsProtocol, _transport: RecordingTransport) -> None:
        protocol.on_response_complete = lambda: ended.append(True)  # type: ignore[method-assign]
        protocol.data_received(REQUEST)
        await asyncio.gather(*protocol.tasks)
        assert ended == [True]
        assert protocol.timeout_keep_alive_task is None

    on_loop(check)


def test_a_pipelined_request_waits_in_the_pipeline() -> None:
    async def check(protocol: HttpToolsProtocol, transport: RecordingTransport) -> None:
        protocol.data_received(REQUEST + REQUEST)
        assert len(protocol.pipeline) == 1
        while protocol.tasks:
            await asyncio.gather(*protocol.tasks)
        assert transport.written.count(b"HTTP/1.1 204") == 2
        assert not protocol.pipeline

    on_loop(check)


def test_closing_by_timeout_and_by_error() -> None:
    def timeout(protocol: HttpToolsProtocol, transport: RecordingTransport) -> None:
        protocol.timeout_keep_alive_handler()
        assert transport.closed

    def error(protocol: HttpToolsProtocol, transport: RecordingTransport) -> None:
        protocol.send_400_response("no")
        assert transport.written.startswith(b"HTTP/1.1 400 ")
        assert transport.closed

    on_loop(timeout)
    on_loop(error)
