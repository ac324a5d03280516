"""One stream of a connection: the data that the peer has sent, and the response that is still to be sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from headrace.serve.grpc.http2.headers import RequestHeaders

WAITING = 65_536
"""Bytes that may wait for the peer before `room` blocks."""


class Sender(Protocol):
    """The connection, as its streams see it."""

    choked: bool
    address: str
    response_headers: bytes
    success_trailers: bytes

    def send_headers(self, number: int, block: bytes) -> None:
        """Send the headers of a response with a body."""

    def respond_at_once(self, stream: Http2Stream, data: bytes) -> bool:
        """Send headers, body and trailers at once; False when the windows are too small."""

    def pump(self, stream: Http2Stream) -> None:
        """Send what the windows allow; after the last byte, the trailers."""

    def consumed(self, stream: Http2Stream) -> None:
        """The data of the stream was processed: let the peer send as much again."""


class Handler(Protocol):
    """Processes the streams of a connection."""

    response_headers: bytes
    """The header block of each response."""
    success_trailers: bytes
    """The trailers of a response without error."""

    def begin(self, stream: Http2Stream) -> None:
        """A stream has begun: its headers are read."""

    def received(self, stream: Http2Stream) -> None:
        """`incoming` has more data, or the peer sends no more (`ended`)."""


class Http2Stream:
    """One request: its received data, and its response."""

    __slots__ = (
        "_drained",
        "closed",
        "connection",
        "ended",
        "headers",
        "id",
        "incoming",
        "on_close",
        "pending",
        "started",
        "state",
        "trailers",
        "unacknowledged",
        "window",
    )  # fmt: skip

    def __init__(self, connection: Sender, number: int, headers: RequestHeaders, window: int) -> None:
        self.connection, self.id, self.headers, self.window = connection, number, headers, window
        self.incoming = bytearray()
        self.pending = bytearray()
        self.trailers: bytes | None = None
        self.started = self.ended = self.closed = False
        self.unacknowledged = 0
        """Received bytes for which the peer got no window update yet."""
        self.state: object = None
        """State of the handler."""
        self.on_close: Callable[[], object] | None = None
        self._drained: asyncio.Future[None] | None = None

    def send(self, data: bytes) -> None:
        """Queue data for the peer; `room` waits until the peer has read most of it."""
        if self.closed:
            return
        if not self.started:
            self.started = True
            self.connection.send_headers(self.id, self.connection.response_headers)
        self.pending += data
        self.connection.pump(self)

    def finish(self, trailers: bytes, headers: bytes | None = None) -> None:
        """End with trailers, after all queued data. Without data, headers and trailers form one block."""
        if self.closed or self.trailers is not None:
            return
        first = self.connection.response_headers if headers is None else headers
        self.trailers = trailers if self.started else first + trailers
        self.started = True
        self.connection.pump(self)

    def respond(self, data: bytes) -> None:
        """Send the complete response of a successful request."""
        if not self.connection.respond_at_once(self, data):
            self.send(data)
            self.finish(self.connection.success_trailers)

    async def room(self) -> bool:
        """Wait until the peer has read most of the data; False: the stream has ended."""
        while not self.closed and (len(self.pending) > WAITING or self.connection.choked):
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained
        return not self.closed

    def close(self) -> None:
        """The stream has ended, for any reason."""
        self.closed = True
        self.pending.clear()
        self.wake()
        if self.on_close is not None:
            self.on_close()

    def wake(self) -> None:
        """Let `room` check again."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
