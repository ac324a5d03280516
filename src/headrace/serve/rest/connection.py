"""HTTP connections of an API process: those of uvicorn, with a short path for requests for one row.

A request for one row is answered when its headers are read, with one write: no scope, no task. `RowRoutes` decides
which requests these are and what they get, here as in the application; all others take uvicorn's path. This module uses
internals of uvicorn: `tests/serve/rest/test_uvicorn_contract.py` lists them, and pyproject.toml limits the version.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from headrace.serve.http.problems import Headers
from headrace.serve.rest.app import App

CHECK_SECONDS, IDLE_SECONDS = 5, 75
"""An idle connection is kept this long: usually longer than load balancers keep theirs."""
_IDLE_CHECKS, _HEADER_CHECKS = IDLE_SECONDS // CHECK_SECONDS, 6
_HEADER_BYTES = 400_000
"""The largest request header; it must arrive within `_HEADER_CHECKS` checks."""
_TOGETHER = 65_536
"""The most bytes that are gathered into one write."""
_STATUS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class _CompletedCycle:
    """Replaces uvicorn's cycle of a request that is already answered: further parts of the request are ignored."""

    response_complete = True
    message_event = asyncio.Event()


class _GatheringTransport:
    """A transport that joins the writes of one iteration of the event loop: the header of a response and its body."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._waiting: list[bytes] = []
        self._bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send soon."""
        if not self._waiting:
            self._loop.call_soon(self._send)
        self._waiting.append(data)
        self._bytes += len(data)
        if self._bytes > _TOGETHER:  # send now, so that the transport can apply back pressure
            self._send()

    def close(self) -> None:
        """Close after everything is sent."""
        self._send()
        self._transport.close()

    def _send(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if waiting and not self._transport.is_closing():  # the caller may have disconnected
            self._transport.write(b"".join(waiting))


_COMPLETED = cast(RequestResponseCycle, _CompletedCycle())


class HttpConnection(HttpToolsProtocol):
    """One connection. It is closed when a request header does not arrive in time or is too long."""

    app: App
    _in_header = False
    _header_bytes = 0
    _checks = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = cast(asyncio.Transport, _GatheringTransport(transport, self.loop))

    def check_idle(self) -> None:
        """Must be called every `CHECK_SECONDS`. One pass over all connections costs less than a timer per request."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._checks = 0
        self._checks += 1
        if self._checks > (_HEADER_CHECKS if self._in_header else _IDLE_CHECKS):
            self.timeout_keep_alive_handler()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_header:
            self._header_bytes += len(data)
            if self._header_bytes > _HEADER_BYTES and not self.transport.is_closing():
                self.send_400_response("The header of the request is too long.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_header = True
        self._checks = 0

    def on_headers_complete(self) -> None:
        self._in_header = False
        self._header_bytes = 0
        if not self._answered():
            super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Without a timer for the next request: `check_idle` replaces it, and a timer costs as much as a row."""
        if self.pipeline:
            super().on_response_complete()
        elif not self.transport.is_closing():
            self.flow.resume_reading()

    def _answered(self) -> bool:
        """Answer a request for one row; False: the request takes uvicorn's path."""
        cycle, parser, url = self.cycle, self.parser, self.url
        if (cycle is not None and not cycle.response_complete) or self.flow.write_paused:
            return False  # responses have the order of the requests, and wait for slow readers
        if parser.get_method() != b"GET" or url[:1] != b"/" or b"?" in url or b"#" in url:
            return False
        if self.expect_100_continue or parser.should_upgrade():
            return False
        reply = self.app.row(url, self.headers, self.client)
        if reply is None:
            return False
        self._write(*reply)
        return True

    def _write(self, status: int, headers: Headers, body: bytes) -> None:
        keep = self.parser.should_keep_alive() and self.parser.get_http_version() != "1.0"
        lines = [b"%b: %b\r\n" % header for header in (*self.server_state.default_headers, *headers)]
        end = b"\r\n" if keep else b"connection: close\r\n\r\n"
        self.cycle = _COMPLETED
        self.transport.write(b"".join((_STATUS[status], *lines, end, body)))
        if not keep:
            self.transport.close()
