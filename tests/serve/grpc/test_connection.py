"""HTTP/2 below gRPC: what a connection does with frames, right and wrong ones, and with peers that do not read."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc
import hpack
import pytest

from headrace.core.errors import RequestError
from headrace.serve.grpc.calls import Caller, Calls, Method, Style, _seconds
from headrace.serve.grpc.http2 import frames
from headrace.serve.grpc.http2.connection import STREAMS, Http2Connection
from headrace.serve.grpc.http2.frames import Code, PeerError, Setting
from headrace.serve.grpc.http2.headers import BadHeadersError, HeaderReader, literal

LARGEST = 1_000_000
HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/t/Echo"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


class Running:
    """A server of a few methods, on a thread."""

    def __init__(self) -> None:
        self.given = 0
        self.methods = {
            "/t/Echo": Method(Style.QUICK, lambda _caller, message: message),
            "/t/Slow": Method(Style.SLOW, lambda _caller, message: message),
            "/t/Refuse": Method(Style.QUICK, _refuse),
            "/t/Bug": Method(Style.QUICK, lambda _caller, _message: 1 // 0),
            "/t/Many": Method(Style.STREAM, self._many),
            "/t/Talk": Method(Style.TALK, _talk),
            "/t/Never": Method(Style.STREAM, _never),
        }
        self.loop = asyncio.new_event_loop()
        self.connections: set[Http2Connection] = set()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.server = asyncio.run_coroutine_threadsafe(self._start(), self.loop).result(10)
        self.port: int = self.server.sockets[0].getsockname()[1]

    async def _start(self) -> asyncio.Server:
        calls = Calls(self.methods.get, ThreadPoolExecutor(1), LARGEST)
        make = lambda: Http2Connection(calls, self.connections)  # noqa: E731
        return await self.loop.create_server(make, "127.0.0.1", 0)

    async def _many(self, _caller: Caller, message: bytes) -> AsyncIterator[bytes]:
        for _ in range(int(message)):
            self.given += 1
            yield bytes(10_000)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.server.close)
        for connection in list(self.connections):
            self.loop.call_soon_threadsafe(connection.abort)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)


def _refuse(_caller: Caller, _message: bytes) -> bytes:
    raise RequestError("bad-json", "not “JSON”\n", status=429, hint="100 %")


async def _talk(_caller: Caller, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for message in messages:
        yield message * 2


async def _never(_caller: Caller, _message: bytes) -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    found = Running()
    yield found
    found.close()


@pytest.fixture
def channel(running: Running) -> Iterator[grpc.Channel]:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{running.port}", options=options) as found:
        yield found


def test_small_and_large_messages(channel: grpc.Channel) -> None:
    for path in ("/t/Echo", "/t/Slow"):
        call = channel.unary_unary(path)
        for size in (0, 1, 100, 16_379, 16_384, 70_000, LARGEST):
            assert call(bytes(size), timeout=10) == bytes(size)


def test_many_calls_at_once(channel: grpc.Channel) -> None:
    call = channel.unary_unary("/t/Echo")
    asked = [call.future(b"%d" % number, timeout=20) for number in range(600)]
    assert [one.result() for one in asked] == [b"%d" % number for number in range(600)]


def test_a_stream_of_messages_both_ways(channel: grpc.Channel) -> None:
    assert list(channel.stream_stream("/t/Talk")(iter([b"a", b"b", bytes(100_000)]), timeout=10)) == [
        b"aa",
        b"bb",
        bytes(200_000),
    ]


def test_how_calls_go_wrong(channel: grpc.Channel) -> None:
    def outcome(path: str, message: bytes = b"", **more: Any) -> Any:
        with pytest.raises(grpc.RpcError) as error:
            channel.unary_unary(path)(message, **{"timeout": 10, **more})
        return error.value

    refused = outcome("/t/Refuse")
    assert (refused.code(), refused.details()) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "bad-json: not “JSON”\n (100 %)",
    )
    assert dict(refused.trailing_metadata())["headrace-code"] == "bad-json"
    bug = outcome("/t/Bug")
    assert bug.code() is grpc.StatusCode.INTERNAL
    assert "division" not in bug.details()
    assert outcome("/t/Other").code() is grpc.StatusCode.UNIMPLEMENTED
    assert outcome("/t/Echo", bytes(LARGEST + 1)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert outcome("/t/Never", timeout=0.2).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert outcome("/t/Echo", bytes(5000), compression=grpc.Compression.Gzip).code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_reader_that_stops_is_waited_for(running: Running, channel: grpc.Channel) -> None:
    running.given = 0
    peer = Peer(running.port)
    peer.begin(1, b"100000", path="/t/Many")
    seen = 0
    while seen < frames.WINDOW:
        kind, _, _, payload = peer.read()
        seen += len(payload) if kind == frames.DATA else 0
    # its window is full: some wait in the stream, and no more are made
    assert channel.unary_unary("/t/Echo")(b"others go on", timeout=10)
    assert running.given < 30
    peer.write(frames.window_update(0, 1 << 20) + frames.window_update(1, 50_000))
    while seen < frames.WINDOW + 50_000:
        kind, _, _, payload = peer.read()
        seen += len(payload) if kind == frames.DATA else 0
    assert running.given < 40
    peer.write(frames.reset(1, Code.CANCEL))
    assert peer.echo(3) == b"still here"
    peer.close()


class Peer:
    """A client that says what it wants to."""

    def __init__(self, port: int, greeting: bytes = frames.PREFACE + frames.settings({})) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._file = self._socket.makefile("rb")
        self._encoder = hpack.Encoder()
        self.write(greeting)

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def block(self, path: str = "/t/Echo") -> bytes:
        return self._encoder.encode([(name, path if name == ":path" else value) for name, value in HEADERS])

    def begin(self, stream: int, message: bytes, path: str = "/t/Echo") -> None:
        head = frames.frame(frames.HEADERS, frames.END_HEADERS, stream, self.block(path))
        body = b"\x00" + len(message).to_bytes(4, "big") + message
        self.write(head + frames.frame(frames.DATA, frames.END_STREAM, stream, body))

    def read(self) -> tuple[int, int, int, bytes]:
        """Kind, flags, stream and payload of the next frame."""
        head = self._file.read(frames.HEADER_BYTES)
        if len(head) < frames.HEADER_BYTES:
            raise EOFError
        length, kind, flags, stream = frames.frame_header(head, 0)
        return kind, flags, stream, self._file.read(length)

    def until(self, wanted: int) -> tuple[int, bytes]:
        """Stream and payload of the next frame of a kind."""
        while (found := self.read())[0] != wanted:
            pass
        return found[2], found[3]

    def echo(self, stream: int) -> bytes:
        self.begin(stream, b"still here")
        while (found := self.until(frames.DATA))[0] != stream:
            pass
        return found[1][5:]

    def end(self) -> Code:
        """Why the server ended the connection."""
        _, payload = self.until(frames.GOAWAY)
        with suppress(EOFError):
            self.until(-1)
        self.close()
        return Code(int.from_bytes(payload[4:], "big"))

    def close(self) -> None:
        self._file.close()
        self._socket.close()


ENDING: dict[str, tuple[bytes, Code]] = {
    "a frame that is too long": (frames.frame(frames.DATA, 0, 1, bytes(16_385)), Code.FRAME_SIZE_ERROR),
    "data on no stream": (frames.frame(frames.DATA, 0, 0, b"x"), Code.PROTOCOL_ERROR),
    "data before the head": (frames.frame(frames.DATA, 0, 1, b"x"), Code.PROTOCOL_ERROR),
    "an even stream": (frames.frame(frames.HEADERS, 4, 2, b"\x82"), Code.PROTOCOL_ERROR),
    "no header block": (frames.frame(frames.HEADERS, 4, 1, b"\xff\xff\xff\xff\xff\xff"), Code.COMPRESSION_ERROR),
    "nothing to continue": (frames.frame(frames.CONTINUATION, 4, 1, b"\x82"), Code.PROTOCOL_ERROR),
    "something amid a block": (
        frames.frame(frames.HEADERS, 0, 1, b"\x82") + frames.frame(frames.PING, 0, 0, bytes(8)),
        Code.PROTOCOL_ERROR,
    ),
    "a block without end": (
        frames.frame(frames.HEADERS, 0, 1) + frames.frame(frames.CONTINUATION, 0, 1) * 100,
        Code.ENHANCE_YOUR_CALM,
    ),
    "a push": (frames.frame(frames.PUSH_PROMISE, 4, 1, bytes(8)), Code.PROTOCOL_ERROR),
    "a short ping": (frames.frame(frames.PING, 0, 0, b"x"), Code.FRAME_SIZE_ERROR),
    "no more room": (frames.window_update(0, 0), Code.PROTOCOL_ERROR),
    "too much room": (frames.window_update(0, frames.LARGEST_WINDOW), Code.FLOW_CONTROL_ERROR),
    "half a setting": (frames.frame(frames.SETTINGS, 0, 0, b"xxx"), Code.FRAME_SIZE_ERROR),
    "a wrong window": (frames.settings({Setting.INITIAL_WINDOW_SIZE: 1 << 31}), Code.FLOW_CONTROL_ERROR),
    "a wrong frame size": (frames.settings({Setting.MAX_FRAME_SIZE: 1}), Code.PROTOCOL_ERROR),
    "resets of nothing": (frames.reset(1, Code.CANCEL), Code.PROTOCOL_ERROR),
    "more padding than payload": (frames.frame(frames.DATA, frames.PADDED, 1, b"\x05x"), Code.PROTOCOL_ERROR),
}


@pytest.mark.parametrize("what", ENDING)
def test_what_ends_a_connection(running: Running, what: str) -> None:
    data, code = ENDING[what]
    peer = Peer(running.port)
    peer.write(data)
    assert peer.end() is code


def test_who_does_not_speak_http2(running: Running) -> None:
    assert Peer(running.port, b"GET / HTTP/1.1\r\n\r\n").end() is Code.PROTOCOL_ERROR
    assert Peer(running.port, frames.PREFACE + frames.frame(frames.PING, 0, 0, bytes(8))).end() is Code.PROTOCOL_ERROR


def test_calls_that_are_given_up_again_and_again(running: Running) -> None:
    peer = Peer(running.port)
    heads = (frames.frame(frames.HEADERS, frames.END_HEADERS, number, peer.block()) for number in range(1, 1_003, 2))
    # in one piece: what the server has not read when it hangs up would make the end a rude one
    peer.write(
        b"".join(
            head + frames.reset(number, Code.CANCEL) for number, head in zip(range(1, 1_003, 2), heads, strict=True)
        )
    )
    assert peer.end() is Code.ENHANCE_YOUR_CALM


def test_only_so_many_calls_at_once(running: Running) -> None:
    peer = Peer(running.port)
    for number in range(STREAMS + 1):
        peer.write(frames.frame(frames.HEADERS, frames.END_HEADERS, 2 * number + 1, peer.block()))
    stream, payload = peer.until(frames.RST_STREAM)
    assert (stream, int.from_bytes(payload, "big")) == (2 * STREAMS + 1, Code.REFUSED_STREAM)
    peer.close()


def test_what_only_ends_a_stream(running: Running) -> None:
    peer = Peer(running.port)
    bad = peer._encoder.encode([*HEADERS, ("connection", "close")])
    peer.write(frames.frame(frames.HEADERS, frames.END_HEADERS, 1, bad))
    assert peer.until(frames.RST_STREAM) == (1, int(Code.PROTOCOL_ERROR).to_bytes(4, "big"))
    peer.write(frames.frame(frames.DATA, 0, 1, b"late"))
    assert peer.until(frames.RST_STREAM) == (1, int(Code.STREAM_CLOSED).to_bytes(4, "big"))
    assert peer.echo(3) == b"still here"
    peer.close()


def test_frames_in_any_pieces(running: Running) -> None:
    peer = Peer(running.port)
    block = peer.block()
    data = frames.frame(frames.HEADERS, 0, 1, block[:3]) + frames.frame(frames.CONTINUATION, 4, 1, block[3:])
    data += frames.frame(frames.DATA, frames.PADDED, 1, b"\x03\x00\x00\x00\x00\x02hi" + bytes(3))
    data += frames.frame(frames.DATA, frames.END_STREAM, 1)
    data += frames.frame(frames.PRIORITY, 0, 1, bytes(5)) + frames.frame(0x77, 0xFF, 9, b"unknown")
    for at in range(len(data)):
        peer.write(data[at : at + 1])
    assert peer.until(frames.DATA) == (1, b"\x00\x00\x00\x00\x02hi")
    peer.close()


def test_a_window_that_opens_later(running: Running) -> None:
    peer = Peer(running.port, frames.PREFACE + frames.settings({Setting.INITIAL_WINDOW_SIZE: 0, Setting(1): 0}))
    peer.begin(1, b"0123456789")
    peer.write(frames.settings({Setting.INITIAL_WINDOW_SIZE: 6}))
    assert peer.until(frames.DATA) == (1, b"\x00\x00\x00\x00\x0a0")
    peer.write(frames.window_update(1, 100))
    assert peer.until(frames.DATA) == (1, b"123456789")
    peer.close()


def test_heads_mean_what_they_meant_when_they_are_remembered() -> None:
    encoder, reader = hpack.Encoder(), HeaderReader()
    heads = [[(name, f"/t/{number}" if name == ":path" else value) for name, value in HEADERS] for number in (1, 2)]
    for number in (0, 0, 0, 1, 1, 0, 1):
        assert reader.read(encoder.encode(heads[number])).path == f"/t/{number + 1}"
    with pytest.raises(BadHeadersError):
        reader.skip(encoder.encode([(":path", "/")]))
    long = "v" * 300
    assert hpack.Decoder().decode(literal("x", long)) == [("x", long)]


def test_heads_of_which_a_part_changes() -> None:
    encoder, reader = hpack.Encoder(), HeaderReader()
    for number in range(200):  # each pushes what is remembered one place further
        head = reader.read(encoder.encode([*HEADERS, ("grpc-timeout", f"{number}m"), ("te", "trailers")]))
        assert (head.path, head.metadata["grpc-timeout"]) == (dict(HEADERS)[":path"], f"{number}m")
    with pytest.raises(PeerError, match="too many"):
        reader.read(encoder.encode([("x", "v" * 3000)]) + b"\xbe" * 20)
    reader = HeaderReader()
    for wrong in (b"\x82\x20", b"\xfe"):  # a change of the table's size behind a header; a header that nobody knows
        with pytest.raises(PeerError, match="cannot be decoded"):
            reader.read(wrong)


def test_deadlines() -> None:
    assert [_seconds(text) for text in ("5S", "100m", "1H", "7u")] == [5.0, 0.1, 3600.0, 7e-6]
    assert [_seconds(text) for text in (None, "", "5", "S", "-1S", "5x", "123456789S")] == [None] * 7
