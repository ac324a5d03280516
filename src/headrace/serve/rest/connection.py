"""HTTP connections of an API process: uvicorn's, with a short way for what is asked most.

A request for one row is answered when its head is read, with one write: no scope, no task. Which requests these are and
what they get is `Rows`'s to say, here as in the application; whatever is not plain goes the long way.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from headrace.serve.http.problems import Headers
from headrace.serve.rest.app import App

LOOK_SECONDS, IDLE_SECONDS = 5, 75
"""A connection is kept that long without a request: longer than balancers keep theirs, as a rule."""
_IDLE_LOOKS, _HEAD_LOOKS = IDLE_SECONDS // LOOK_SECONDS, 6
_HEAD_BYTES = 400_000
"""What the head of a request may have; it may take six looks to come."""
_TOGETHER = 65_536
"""Bytes that are written at once at most, if they come in several parts."""
_STATUS = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode() for one in HTTPStatus}


class _Answered:
    """Stands where uvicorn has the request under way: it was answered, what else comes of it is dropped."""

    response_complete = True
    message_event = asyncio.Event()


class _Gathering:
    """A transport whose writes of one turn of the loop go out as one: an answer's head together with its body."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._waiting: list[bytes] = []
        self._bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """To be sent soon."""
        if not self._waiting:
            self._loop.call_soon(self._send)
        self._waiting.append(data)
        self._bytes += len(data)
        if self._bytes > _TOGETHER:  # now, so that the transport can say that it is too much
            self._send()

    def close(self) -> None:
        """Be done when all is sent."""
        self._send()
        self._transport.close()

    def _send(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if waiting and not self._transport.is_closing():  # the caller may have gone meanwhile
            self._transport.write(b"".join(waiting))


_ANSWERED = cast(RequestResponseCycle, _Answered())


class HttpConnection(HttpToolsProtocol):
    """One connection. Who sends no whole head in time, or one without end, is let go."""

    app: App
    _in_head = False
    _head_bytes = 0
    _looks = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """It begins."""
        super().connection_made(transport)
        self.transport = cast(asyncio.Transport, _Gathering(transport, self.loop))

    def look(self) -> None:
        """To be called every `LOOK_SECONDS`. One look at all connections costs less than a timer for each request."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._looks = 0
        self._looks += 1
        if self._looks > (_HEAD_LOOKS if self._in_head else _IDLE_LOOKS):
            self.timeout_keep_alive_handler()

    def data_received(self, data: bytes) -> None:
        """Some bytes of a request, or of several."""
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._in_head = True
        self._looks = 0

    def on_headers_complete(self) -> None:
        """Its head is read."""
        self._in_head = False
        self._head_bytes = 0
        if not self._answered():
            super().on_headers_complete()

    def on_response_complete(self) -> None:
        """It is answered. No timer for the next one: `look` does that, and a timer costs as much as a row."""
        if self.pipeline:
            super().on_response_complete()
        elif not self.transport.is_closing():
            self.flow.resume_reading()

    def _answered(self) -> bool:
        """Whether the short way did it."""
        cycle, parser, url = self.cycle, self.parser, self.url
        if (cycle is not None and not cycle.response_complete) or self.flow.write_paused:
            return False  # answers go out in the order of requests, and only to those who take them
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
        said = [b"%b: %b\r\n" % one for one in (*self.server_state.default_headers, *headers)]
        end = b"\r\n" if keep else b"connection: close\r\n\r\n"
        self.cycle = _ANSWERED
        self.transport.write(b"".join((_STATUS[status], *said, end, body)))
        if not keep:
            self.transport.close()
