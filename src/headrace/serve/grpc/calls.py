"""gRPC over the HTTP/2 transport in `http2/`: message framing, methods, deadlines, and the status of a call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

from headrace.core.errors import RequestError
from headrace.serve.grpc import trailers as grpc_trailers
from headrace.serve.grpc.http2.headers import response_headers
from headrace.serve.grpc.http2.streams import Http2Stream

_logger = logging.getLogger(__name__)

PREFIX = 5
"""Bytes before a message: the compression flag and the length."""
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class GrpcStatus(IntEnum):
    """The status codes of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


_STATUSES = {
    400: GrpcStatus.INVALID_ARGUMENT,
    401: GrpcStatus.UNAUTHENTICATED,
    403: GrpcStatus.PERMISSION_DENIED,
    404: GrpcStatus.NOT_FOUND,
    409: GrpcStatus.ALREADY_EXISTS,
    413: GrpcStatus.OUT_OF_RANGE,
    422: GrpcStatus.FAILED_PRECONDITION,
    429: GrpcStatus.RESOURCE_EXHAUSTED,
    503: GrpcStatus.UNAVAILABLE,
}


class Style(Enum):
    """How a method runs."""

    QUICK = "unary; runs on the event loop"
    SLOW = "unary; runs in a thread"
    LATER = "unary; a coroutine"
    STREAM = "server streaming"
    TALK = "bidirectional streaming"


@dataclass(frozen=True)
class Caller:
    """The caller of a method, with its metadata."""

    metadata: dict[str, str] = field(repr=False)
    """It may contain a token."""
    address: str


@dataclass(frozen=True)
class Method:
    """One method; messages are bytes, as on the wire."""

    style: Style
    call: Callable[[Caller, Any], Any]


def framed(message: bytes) -> bytes:
    return b"\x00" + len(message).to_bytes(4, "big") + message


def error_trailers(error: RequestError) -> bytes:
    """The trailers of an error that the caller can fix: code and hint are for programs, the message is for people."""
    text = f"{error.code}: {error.message}" + (f" ({error.hint})" if error.hint else "")
    further = [("headrace-code", error.code), *([("headrace-hint", error.hint)] if error.hint else [])]
    return grpc_trailers.trailers(_STATUSES.get(error.status, GrpcStatus.UNKNOWN), text, further)


class _RefusedError(Exception):
    """A call that violates the gRPC protocol."""

    def __init__(self, status: GrpcStatus, message: str, further: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.trailers = grpc_trailers.trailers(status, message, further)


class Calls:
    """Handles the streams of all connections of a process."""

    response_headers = grpc_trailers.HEADERS
    success_trailers = grpc_trailers.OK

    def __init__(self, find: Callable[[str], Method | None], threads: Executor, largest: int) -> None:
        self._find, self._threads, self._largest = find, threads, largest
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, stream: Http2Stream) -> None:
        headers = stream.headers
        kind = headers.metadata.get("content-type", "")
        if headers.method != "POST" or not kind.startswith("application/grpc"):
            status = 405 if headers.method != "POST" else 415
            stream.finish(b"", response_headers(status, "text/plain"))
            return
        method = self._find(headers.path)
        if method is None:
            stream.finish(grpc_trailers.trailers(GrpcStatus.UNIMPLEMENTED, f"unknown method '{headers.path}'"))
            return
        stream.state = method
        if method.style is Style.TALK:
            self._talk(stream, method)
        if stream.ended:
            self.received(stream)

    def received(self, stream: Http2Stream) -> None:
        """Process new data of a call."""
        state = stream.state
        try:
            if isinstance(state, _ClientStream):
                for message in iter(lambda: self._message(stream), None):
                    state.put(message)
                if stream.ended:
                    state.put(None)
            elif isinstance(state, Method):
                self._unary(stream, state)
        except _RefusedError as error:
            stream.finish(error.trailers)

    def _unary(self, stream: Http2Stream, method: Method) -> None:
        """Process the single message of a call."""
        message = self._message(stream)
        if message is None:
            if stream.ended:
                raise _RefusedError(GrpcStatus.INVALID_ARGUMENT, "the call has no complete message")
            stream.connection.consumed(stream)
            return
        stream.state = None
        caller = Caller(stream.headers.metadata, stream.connection.address)
        if method.style is Style.QUICK:
            _quick(stream, method, caller, message)
        elif method.style is Style.SLOW:
            self._start(stream, self._slow(stream, method, caller, message))
        elif method.style is Style.LATER:
            self._start(stream, _later(stream, method, caller, message))
        else:
            self._start(stream, _stream(stream, method, caller, message))

    def _message(self, stream: Http2Stream) -> bytes | None:
        """The next complete message."""
        data = stream.incoming
        if len(data) < PREFIX:
            return None
        size = int.from_bytes(data[1:PREFIX], "big")
        if data[0]:
            accepted = [("grpc-accept-encoding", "identity")]
            raise _RefusedError(GrpcStatus.UNIMPLEMENTED, "compressed messages are not supported", accepted)
        if size > self._largest:
            raise _RefusedError(
                GrpcStatus.RESOURCE_EXHAUSTED, f"the message has {size} bytes; at most {self._largest} are allowed"
            )
        if len(data) < PREFIX + size:
            return None
        message = bytes(data[PREFIX : PREFIX + size])
        del data[: PREFIX + size]
        return message

    def _talk(self, stream: Http2Stream, method: Method) -> None:
        messages = stream.state = _ClientStream(stream)
        caller = Caller(stream.headers.metadata, stream.connection.address)
        self._start(stream, _stream(stream, method, caller, messages.messages()))

    async def _slow(self, stream: Http2Stream, method: Method, caller: Caller, message: bytes) -> None:
        loop = asyncio.get_running_loop()
        reply = await loop.run_in_executor(self._threads, method.call, caller, message)
        stream.respond(framed(reply))

    def _start(self, stream: Http2Stream, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(_guarded(stream, work))
        self._tasks.add(task)
        stream.on_close = task.cancel

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)

        task.add_done_callback(done)


class _ClientStream:
    """The messages of a streaming caller."""

    def __init__(self, stream: Http2Stream) -> None:
        self._stream = stream
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    def put(self, message: bytes | None) -> None:
        self._queue.put_nowait(message)

    async def messages(self) -> AsyncIterator[bytes]:
        while (message := await self._queue.get()) is not None:
            # acknowledge only processed data: the window limits what waits here
            self._stream.connection.consumed(self._stream)
            yield message


def _quick(stream: Http2Stream, method: Method, caller: Caller, message: bytes) -> None:
    try:
        stream.respond(framed(method.call(caller, message)))
    except RequestError as error:
        stream.finish(error_trailers(error))
    except Exception:
        _failed(stream)


async def _later(stream: Http2Stream, method: Method, caller: Caller, message: bytes) -> None:
    stream.respond(framed(await method.call(caller, message)))


async def _stream(stream: Http2Stream, method: Method, caller: Caller, argument: Any) -> None:
    async with aclosing(method.call(caller, argument)) as messages:
        async for message in messages:
            stream.send(framed(message))
            if not await stream.room():
                return
    stream.finish(grpc_trailers.OK)


async def _guarded(stream: Http2Stream, work: Any) -> None:
    try:
        async with asyncio.timeout(_seconds(stream.headers.metadata.get("grpc-timeout"))):
            await work
    except TimeoutError:
        stream.finish(grpc_trailers.trailers(GrpcStatus.DEADLINE_EXCEEDED, "the deadline has passed"))
    except RequestError as error:
        stream.finish(error_trailers(error))
    except Exception:
        _failed(stream)


def _failed(stream: Http2Stream) -> None:
    """A defect of the server: the caller gets a general error, the log has the cause."""
    _logger.exception("a call of %s failed", stream.headers.path)
    message = "internal-error: the server failed; its log has the cause"
    stream.finish(grpc_trailers.trailers(GrpcStatus.INTERNAL, message))


def _seconds(timeout: str | None) -> float | None:
    """Parse `100m` into seconds; an invalid timeout means no deadline."""
    if not timeout or timeout[-1] not in _UNITS or not timeout[:-1].isdecimal() or len(timeout) > 9:
        return None
    return int(timeout[:-1]) * _UNITS[timeout[-1]]
