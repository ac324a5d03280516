"""Calls of gRPC over the streams of a connection: messages, methods, deadlines, and how a call went."""

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
from headrace.serve.grpc.http2 import heads
from headrace.serve.grpc.http2.streams import Http2Stream

_logger = logging.getLogger(__name__)

PREFIX = 5
"""Bytes before a message: whether it is compressed, and its length."""
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class GrpcStatus(IntEnum):
    """How a call went."""

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
    """How a method works."""

    QUICK = "answers at once, on the event loop"
    SLOW = "takes its time, on a thread"
    LATER = "answers when something else is done, which it awaits"
    STREAM = "answers with a stream"
    TALK = "a stream is answered with a stream"


@dataclass(frozen=True)
class Caller:
    """Who calls, and what it says of itself."""

    metadata: dict[str, str] = field(repr=False)
    """There may be a token in it."""
    address: str


@dataclass(frozen=True)
class Method:
    """One method: messages are bytes, as they are on the wire."""

    style: Style
    call: Callable[[Caller, Any], Any]


def framed(message: bytes) -> bytes:
    """A message as it stands in a stream."""
    return b"\x00" + len(message).to_bytes(4, "big") + message


def trailers_of(error: RequestError) -> bytes:
    """How a call went that the caller can mend: the code and the hint are for programs, the message is for people."""
    text = f"{error.code}: {error.message}" + (f" ({error.hint})" if error.hint else "")
    further = [("headrace-code", error.code), *([("headrace-hint", error.hint)] if error.hint else [])]
    return heads.outcome(_STATUSES.get(error.status, GrpcStatus.UNKNOWN), text, further)


class _RefusedError(Exception):
    """A call that is not made as gRPC has it."""

    def __init__(self, status: GrpcStatus, message: str, further: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.trailers = heads.outcome(status, message, further)


class Calls:
    """Answers the streams of all connections of a process."""

    def __init__(self, find: Callable[[str], Method | None], threads: Executor, largest: int) -> None:
        self._find, self._threads, self._largest = find, threads, largest
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, stream: Http2Stream) -> None:
        """A call has begun."""
        head = stream.head
        kind = head.metadata.get("content-type", "")
        if head.method != "POST" or not kind.startswith("application/grpc"):
            http = 405 if head.method != "POST" else 415
            stream.finish(b"", heads.status(http, "text/plain"))
            return
        method = self._find(head.path)
        if method is None:
            stream.finish(heads.outcome(GrpcStatus.UNIMPLEMENTED, f"there is no method '{head.path}'"))
            return
        stream.state = method
        if method.style is Style.TALK:
            self._talk(stream, method)
        if stream.ended:
            self.received(stream)

    def received(self, stream: Http2Stream) -> None:
        """More of a call is there."""
        state = stream.state
        try:
            if isinstance(state, _ClientStream):
                for message in iter(lambda: self._message(stream), None):
                    state.put(message)
                if stream.ended:
                    state.put(None)
            elif isinstance(state, Method):
                self._question(stream, state)
        except _RefusedError as error:
            stream.finish(error.trailers)

    def _question(self, stream: Http2Stream, method: Method) -> None:
        """The one message of a call that has only one."""
        message = self._message(stream)
        if message is None:
            if stream.ended:
                raise _RefusedError(GrpcStatus.INVALID_ARGUMENT, "the call has no whole message")
            stream.connection.taken(stream)
            return
        stream.state = None
        caller = Caller(stream.head.metadata, stream.connection.address)
        if method.style is Style.QUICK:
            _quick(stream, method, caller, message)
        elif method.style is Style.SLOW:
            self._start(stream, self._slow(stream, method, caller, message))
        elif method.style is Style.LATER:
            self._start(stream, _later(stream, method, caller, message))
        else:
            self._start(stream, _stream(stream, method, caller, message))

    def _message(self, stream: Http2Stream) -> bytes | None:
        """The next whole message."""
        data = stream.incoming
        if len(data) < PREFIX:
            return None
        size = int.from_bytes(data[1:PREFIX], "big")
        if data[0]:
            accepted = [("grpc-accept-encoding", "identity")]
            raise _RefusedError(GrpcStatus.UNIMPLEMENTED, "messages may not be compressed", accepted)
        if size > self._largest:
            raise _RefusedError(
                GrpcStatus.RESOURCE_EXHAUSTED, f"a message of {size} bytes is too long: {self._largest} are allowed"
            )
        if len(data) < PREFIX + size:
            return None
        message = bytes(data[PREFIX : PREFIX + size])
        del data[: PREFIX + size]
        return message

    def _talk(self, stream: Http2Stream, method: Method) -> None:
        talk = stream.state = _ClientStream(stream)
        caller = Caller(stream.head.metadata, stream.connection.address)
        self._start(stream, _stream(stream, method, caller, talk.messages()))

    async def _slow(self, stream: Http2Stream, method: Method, caller: Caller, message: bytes) -> None:
        loop = asyncio.get_running_loop()
        reply = await loop.run_in_executor(self._threads, method.call, caller, message)
        stream.answer(framed(reply))

    def _start(self, stream: Http2Stream, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(_guarded(stream, work))
        self._tasks.add(task)
        stream.on_close = task.cancel

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)

        task.add_done_callback(done)


class _ClientStream:
    """The messages of a caller that sends a stream."""

    def __init__(self, stream: Http2Stream) -> None:
        self._stream = stream
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    def put(self, message: bytes | None) -> None:
        self._queue.put_nowait(message)

    async def messages(self) -> AsyncIterator[bytes]:
        while (message := await self._queue.get()) is not None:
            # only what was looked at is replaced: the window bounds what waits here
            self._stream.connection.taken(self._stream)
            yield message


def _quick(stream: Http2Stream, method: Method, caller: Caller, message: bytes) -> None:
    try:
        stream.answer(framed(method.call(caller, message)))
    except RequestError as error:
        stream.finish(trailers_of(error))
    except Exception:
        _failed(stream)


async def _later(stream: Http2Stream, method: Method, caller: Caller, message: bytes) -> None:
    stream.answer(framed(await method.call(caller, message)))


async def _stream(stream: Http2Stream, method: Method, caller: Caller, given: Any) -> None:
    async with aclosing(method.call(caller, given)) as messages:
        async for message in messages:
            stream.send(framed(message))
            if not await stream.room():
                return
    stream.finish(heads.OK)


async def _guarded(stream: Http2Stream, work: Any) -> None:
    try:
        async with asyncio.timeout(_seconds(stream.head.metadata.get("grpc-timeout"))):
            await work
    except TimeoutError:
        stream.finish(heads.outcome(GrpcStatus.DEADLINE_EXCEEDED, "the deadline is over"))
    except RequestError as error:
        stream.finish(trailers_of(error))
    except Exception:
        _failed(stream)


def _failed(stream: Http2Stream) -> None:
    """A defect of the server: the caller learns that there is one, the log what it is."""
    _logger.exception("a call of %s failed", stream.head.path)
    stream.finish(heads.outcome(GrpcStatus.INTERNAL, "internal-error: the server failed to answer; its log says why"))


def _seconds(timeout: str | None) -> float | None:
    """`100m` as seconds; what cannot be read is no deadline."""
    if not timeout or timeout[-1] not in _UNITS or not timeout[:-1].isdecimal() or len(timeout) > 9:
        return None
    return int(timeout[:-1]) * _UNITS[timeout[-1]]
