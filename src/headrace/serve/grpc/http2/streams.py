"""One stream of a connection: what a call has sent, and what is still to go to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from headrace.serve.grpc.http2.heads import BEGIN, OK, Head

WAITING = 65_536
"""Bytes that may wait for the peer before more are made."""


class Sender(Protocol):
    """The connection, as its streams see it."""

    choked: bool
    address: str

    def begin_answer(self, number: int, block: bytes) -> None:
        """The head of an answer with a body."""

    def answer_at_once(self, stream: Http2Stream, data: bytes) -> bool:
        """Head, body and trailers in one piece, if the windows have room."""

    def pump(self, stream: Http2Stream) -> None:
        """Send what the windows have room for; behind the last of it, the trailers."""

    def taken(self, stream: Http2Stream) -> None:
        """What a stream sent has been used: let it send as much again."""


class Handler(Protocol):
    """What the streams of a connection are for."""

    def begin(self, stream: Http2Stream) -> None:
        """A stream has begun: its head is there."""

    def received(self, stream: Http2Stream) -> None:
        """There is more in `incoming`, or the peer will send no more (`ended`)."""


class Http2Stream:
    """One call: what came in, and what is still to go out."""

    __slots__ = (
        "_drained",
        "closed",
        "connection",
        "ended",
        "head",
        "id",
        "incoming",
        "on_close",
        "pending",
        "started",
        "state",
        "taken",
        "trailers",
        "window",
    )  # fmt: skip

    def __init__(self, connection: Sender, number: int, head: Head, window: int) -> None:
        self.connection, self.id, self.head, self.window = connection, number, head, window
        self.incoming = bytearray()
        self.pending = bytearray()
        self.trailers: bytes | None = None
        self.started = self.ended = self.closed = False
        self.taken = 0
        self.state: object = None
        """The handler's own."""
        self.on_close: Callable[[], object] | None = None
        self._drained: asyncio.Future[None] | None = None

    def send(self, data: bytes) -> None:
        """Queue bytes for the peer; `room` tells when it has taken most of them."""
        if self.closed:
            return
        if not self.started:
            self.started = True
            self.connection.begin_answer(self.id, BEGIN)
        self.pending += data
        self.connection.pump(self)

    def finish(self, trailers: bytes, begin: bytes = BEGIN) -> None:
        """End with these trailers, behind all that is queued. Without a body they are all there is to the answer."""
        if self.closed or self.trailers is not None:
            return
        self.trailers = trailers if self.started else begin + trailers
        self.started = True
        self.connection.pump(self)

    def answer(self, data: bytes) -> None:
        """The whole answer to a call that goes well."""
        if not self.connection.answer_at_once(self, data):
            self.send(data)
            self.finish(OK)

    async def room(self) -> bool:
        """Wait until the peer has taken most of what was sent; False: the stream has ended."""
        while not self.closed and (len(self.pending) > WAITING or self.connection.choked):
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained
        return not self.closed

    def close(self) -> None:
        """The stream is over, for whatever reason."""
        self.closed = True
        self.pending.clear()
        self.wake()
        if self.on_close is not None:
            self.on_close()

    def wake(self) -> None:
        """Let `room` look again."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
