"""One HTTP/2 connection (RFC 9113): receives and sends frames, manages streams and flow control.

Only what a gRPC server needs: no push, no priorities, and response headers are not compressed. A stream whose peer does
not read stops when its window is full; a peer that reads nothing is not read from either.
"""

from __future__ import annotations

import asyncio
import logging
import time

from headrace.serve.grpc.http2 import frames
from headrace.serve.grpc.http2.frames import Code, PeerError, Setting, StreamError
from headrace.serve.grpc.http2.headers import BadHeadersError, HeaderReader
from headrace.serve.grpc.http2.streams import WAITING, Handler, Http2Stream

_logger = logging.getLogger(__name__)

STREAMS = 256
"""Concurrent streams of one connection."""
_STREAM_WINDOW = 1 << 20
_CONNECTION_WINDOW = 4 << 20
_LONGEST_BLOCK = 32_768
_MOST_PIECES = 64
_BUFFER = 262_144
_PREFACE_SECONDS = 10.0
_RESETS_PER_SECOND = 500
_EMPTY_TABLE = b"\x20"


class Http2Connection(asyncio.Protocol):
    """The server side of one connection."""

    def __init__(self, handler: Handler, connections: set[Http2Connection]) -> None:
        self.choked = False
        self.address = ""
        self.response_headers, self.success_trailers = handler.response_headers, handler.success_trailers
        self._handler, self._connections = handler, connections
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._streams: dict[int, Http2Stream] = {}
        self._reader = HeaderReader()
        self._unparsed = b""
        self._out: list[bytes] = []
        self._reading = self._scheduled = self._has_preface = self._has_settings = self._ending = False
        self._last = 0
        self._block: tuple[int, bytearray, int] | None = None
        self._pieces = 0
        self._window = self._peer_window = frames.WINDOW
        self._largest = frames.LARGEST
        self._unacknowledged = 0
        self._resets, self._second = 0, 0.0
        self._prefix = b""
        self._kinds = (self._data, self._headers, self._priority, self._rst_stream, self._settings, self._push_promise,
                       self._ping, self._goaway, self._window_update, self._continuation)  # fmt: skip

    # --- transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Send the settings of this side."""
        self._transport = transport
        self._connections.add(self)
        transport.set_write_buffer_limits(high=_BUFFER)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        own = {Setting.MAX_CONCURRENT_STREAMS: STREAMS, Setting.INITIAL_WINDOW_SIZE: _STREAM_WINDOW}
        self._write(frames.settings({**own, Setting.MAX_HEADER_LIST_SIZE: _LONGEST_BLOCK}))
        self._write(frames.window_update(0, _CONNECTION_WINDOW - frames.WINDOW))
        self._loop.call_later(_PREFACE_SECONDS, self._check_settings)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        for stream in list(self._streams.values()):
            stream.close()
        self._streams.clear()

    def pause_writing(self) -> None:
        """The peer reads too slowly: produce no more, and read nothing that would need a response."""
        self.choked = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self.choked = False
        self._transport.resume_reading()
        for stream in list(self._streams.values()):
            stream.wake()

    def data_received(self, data: bytes) -> None:
        """Process all complete frames; their responses are sent in one write."""
        self._reading = True
        try:
            data = self._unparsed + data if self._unparsed else data
            self._unparsed = data[self._process(data) :]
        except PeerError as error:
            _logger.info("ended a connection from %s: %s", self.address, error)
            self._end(error.code)
        finally:
            self._reading = False
            self._flush()

    def shut_down(self) -> None:
        """Accept no new streams, and close after the last open one."""
        if not self._ending:
            self._ending = True
            self._write(frames.goaway(self._last, Code.NO_ERROR))
        self._close_if_done()

    def abort(self) -> None:
        self._transport.abort()

    # --- received frames

    def _process(self, data: bytes) -> int:
        at = 0
        if not self._has_preface:
            if not data.startswith(frames.PREFACE):
                if frames.PREFACE.startswith(data):
                    return 0
                raise PeerError(Code.PROTOCOL_ERROR, "the peer does not speak HTTP/2")
            self._has_preface, at = True, len(frames.PREFACE)
        while len(data) - at >= frames.HEADER_BYTES and not self._transport.is_closing():
            length, kind, flags, stream = frames.frame_header(data, at)
            if length > frames.LARGEST:
                raise PeerError(Code.FRAME_SIZE_ERROR, "a frame is too long")
            end = at + frames.HEADER_BYTES + length
            if end > len(data):
                break
            try:
                self._frame(kind, flags, stream, data[at + frames.HEADER_BYTES : end])
            except StreamError as error:
                self._reset(error.stream, error.code)
            at = end
        return at

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if not self._has_settings and kind != frames.SETTINGS:
            raise PeerError(Code.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if self._block is not None and (kind != frames.CONTINUATION or stream != self._block[0]):
            raise PeerError(Code.PROTOCOL_ERROR, "a header block is not continued")
        if kind < len(self._kinds):
            self._kinds[kind](flags, stream, payload)

    def _headers(self, flags: int, stream: int, payload: bytes) -> None:
        if stream % 2 == 0:
            raise PeerError(Code.PROTOCOL_ERROR, "a stream has an even number")
        piece = frames.header_block(payload, flags, stream)
        if flags & frames.END_HEADERS:
            self._begin(stream, piece, bool(flags & frames.END_STREAM))
        else:
            self._block, self._pieces = (stream, bytearray(piece), flags), 0

    def _continuation(self, flags: int, stream: int, payload: bytes) -> None:
        if self._block is None:
            raise PeerError(Code.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        _, block, begun = self._block
        block += payload
        self._pieces += 1
        if len(block) > _LONGEST_BLOCK or self._pieces > _MOST_PIECES:
            raise PeerError(Code.ENHANCE_YOUR_CALM, "a header block is too long")
        if flags & frames.END_HEADERS:
            self._block = None
            self._begin(stream, bytes(block), bool(begun & frames.END_STREAM))

    def _begin(self, number: int, block: bytes, ended: bool) -> None:
        open_stream = self._streams.get(number)
        try:
            if open_stream is not None:
                self._trailers(open_stream, block, ended)
                return
            if number <= self._last:
                raise PeerError(Code.STREAM_CLOSED, "HEADERS on a closed stream")
            self._last = number
            headers = self._reader.read(block)
        except BadHeadersError as error:
            raise StreamError(number, Code.PROTOCOL_ERROR, str(error)) from None
        if self._ending or len(self._streams) >= STREAMS:
            raise StreamError(number, Code.REFUSED_STREAM, "too many streams, or the server is stopping")
        stream = self._streams[number] = Http2Stream(self, number, headers, self._peer_window)
        stream.ended = ended
        self._handler.begin(stream)

    def _trailers(self, stream: Http2Stream, block: bytes, ended: bool) -> None:
        self._reader.skip(block)
        if stream.ended:
            raise StreamError(stream.id, Code.STREAM_CLOSED, "HEADERS after the end of the stream")
        if not ended:
            raise StreamError(stream.id, Code.PROTOCOL_ERROR, "a second HEADERS does not end the stream")
        stream.ended = True
        self._handler.received(stream)

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        if number == 0:
            raise PeerError(Code.PROTOCOL_ERROR, "DATA on stream 0")
        self._unacknowledged += len(payload)
        if self._unacknowledged >= _CONNECTION_WINDOW // 2:
            self._write(frames.window_update(0, self._unacknowledged))
            self._unacknowledged = 0
        body = frames.unpadded(payload, flags)
        stream = self._streams.get(number)
        if stream is None or stream.ended:
            self._not_idle(number)
            raise StreamError(number, Code.STREAM_CLOSED, "DATA after the end of the stream")
        stream.incoming += body
        stream.unacknowledged += len(payload)
        if flags & frames.END_STREAM:
            stream.ended = True
        elif stream.unacknowledged > _STREAM_WINDOW:
            raise StreamError(number, Code.FLOW_CONTROL_ERROR, "DATA exceeds the window")
        self._handler.received(stream)

    def consumed(self, stream: Http2Stream) -> None:
        """The data of the stream was processed: let the peer send as much again."""
        if stream.unacknowledged and not stream.ended and not stream.closed:
            self._write(frames.window_update(stream.id, stream.unacknowledged))
            stream.unacknowledged = 0

    def _window_update(self, flags: int, number: int, payload: bytes) -> None:
        more = frames.uint31(payload, "WINDOW_UPDATE")
        if number == 0:
            self._window += more
            if not more or self._window > frames.LARGEST_WINDOW:
                raise PeerError(Code.FLOW_CONTROL_ERROR if more else Code.PROTOCOL_ERROR, "the window is not valid")
            for blocked in [blocked for blocked in self._streams.values() if blocked.pending]:
                self.pump(blocked)
            return
        stream = self._streams.get(number)
        if stream is None:
            self._not_idle(number)
            return
        stream.window += more
        if not more or stream.window > frames.LARGEST_WINDOW:
            code = Code.FLOW_CONTROL_ERROR if more else Code.PROTOCOL_ERROR
            raise StreamError(number, code, "the window is not valid")
        self.pump(stream)

    def _rst_stream(self, flags: int, number: int, payload: bytes) -> None:
        frames.uint31(payload, "RST_STREAM")
        self._not_idle(number)
        now = time.monotonic()
        if now - self._second > 1.0:
            self._second, self._resets = now, 0
        self._resets += 1
        if self._resets > _RESETS_PER_SECOND:
            raise PeerError(Code.ENHANCE_YOUR_CALM, "the peer resets too many streams")
        self._forget(number)

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise PeerError(Code.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & frames.ACK:
            if payload:
                raise PeerError(Code.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS has a payload")
            return
        for name, value in frames.read_settings(payload):
            if name == Setting.INITIAL_WINDOW_SIZE:
                self._move_windows(value - self._peer_window)
                self._peer_window = value
            elif name == Setting.MAX_FRAME_SIZE:
                self._largest = min(value, 1 << 20)
            elif name == Setting.HEADER_TABLE_SIZE and value < 4096:
                self._prefix = _EMPTY_TABLE
        self._has_settings = True
        self._write(frames.frame(frames.SETTINGS, frames.ACK, 0))

    def _move_windows(self, by: int) -> None:
        for stream in list(self._streams.values()):
            stream.window += by
            if stream.window > frames.LARGEST_WINDOW:
                raise PeerError(Code.FLOW_CONTROL_ERROR, "the window is not valid")
            self.pump(stream)

    def _ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise PeerError(Code.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise PeerError(Code.FRAME_SIZE_ERROR, "PING has a wrong length")
        if not flags & frames.ACK:
            self._write(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _goaway(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise PeerError(Code.PROTOCOL_ERROR, "GOAWAY on a stream")
        self._ending = True
        self._close_if_done()

    def _priority(self, flags: int, number: int, payload: bytes) -> None:
        if number == 0:
            raise PeerError(Code.PROTOCOL_ERROR, "PRIORITY on stream 0")
        frames.check_priority(payload, number)

    def _push_promise(self, flags: int, number: int, payload: bytes) -> None:
        raise PeerError(Code.PROTOCOL_ERROR, "a client must not send PUSH_PROMISE")

    def _not_idle(self, number: int) -> None:
        if number == 0 or number > self._last or number % 2 == 0:
            raise PeerError(Code.PROTOCOL_ERROR, "a frame on an idle stream")

    # --- sent frames

    def send_headers(self, number: int, block: bytes) -> None:
        """Send the headers of a response with a body."""
        self._write(frames.frame(frames.HEADERS, frames.END_HEADERS, number, self._prefix + block))
        self._prefix = b""

    def respond_at_once(self, stream: Http2Stream, data: bytes) -> bool:
        """Send headers, body and trailers at once; False when the windows are too small."""
        size = len(data)
        if stream.started or stream.closed or size > min(self._window, stream.window, self._largest):
            return False
        self._window -= size
        stream.started = True
        self.send_headers(stream.id, self.response_headers)
        self._write(frames.frame(frames.DATA, 0, stream.id, data))
        flags = frames.END_HEADERS | frames.END_STREAM
        self._write(frames.frame(frames.HEADERS, flags, stream.id, self.success_trailers))
        self._over(stream)
        return True

    def pump(self, stream: Http2Stream) -> None:
        """Send what the windows allow; after the last byte, the trailers."""
        pending = stream.pending
        while pending and (size := min(len(pending), self._window, stream.window, self._largest)) > 0:
            self._write(frames.frame(frames.DATA, 0, stream.id, bytes(pending[:size])))
            del pending[:size]
            self._window -= size
            stream.window -= size
        if len(pending) <= WAITING:
            stream.wake()
        if not pending and stream.trailers is not None:
            flags = frames.END_HEADERS | frames.END_STREAM
            self._write(frames.frame(frames.HEADERS, flags, stream.id, self._prefix + stream.trailers))
            self._prefix = b""
            self._over(stream)

    def _over(self, stream: Http2Stream) -> None:
        if not stream.ended:  # the response did not wait for the rest of the request
            self._write(frames.reset(stream.id, Code.NO_ERROR))
        self._forget(stream.id)

    def _reset(self, number: int, code: Code) -> None:
        self._write(frames.reset(number, code))
        self._forget(number)

    def _forget(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.close()
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._ending and not self._streams and not self._transport.is_closing():
            self._flush()
            self._transport.close()

    def _end(self, code: Code) -> None:
        self._ending = True
        self._write(frames.goaway(self._last, code))
        self._flush()
        self._transport.close()

    def _check_settings(self) -> None:
        if not self._has_settings and not self._transport.is_closing():
            self._end(Code.PROTOCOL_ERROR)

    def _write(self, data: bytes) -> None:
        self._out.append(data)
        if not self._reading and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if self._out:
            data, self._out = b"".join(self._out), []
            if not self._transport.is_closing():
                self._transport.write(data)
