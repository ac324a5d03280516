"""Encodes and decodes the frames of HTTP/2 (RFC 9113), as far as a gRPC server needs them. No state."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES = 9
"""Bytes of a frame header."""
LARGEST = 16_384
"""The largest payload that either side accepts by default."""
WINDOW = 65_535
LARGEST_WINDOW = 2**31 - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

_LENGTH_AND_KIND = struct.Struct(">HBBBI")
_SETTING = struct.Struct(">HI")
_UINT32 = struct.Struct(">I")
_LAST_31 = 0x7FFFFFFF


class Code(IntEnum):
    """The error codes of RST_STREAM and GOAWAY."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class Setting(IntEnum):
    """The parameters of SETTINGS."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


class PeerError(Exception):
    """The peer violated the protocol: the connection ends."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class StreamError(Exception):
    """The peer violated the protocol on one stream: only the stream ends."""

    def __init__(self, stream: int, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.stream, self.code = stream, code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    length = len(payload)
    return _LENGTH_AND_KIND.pack(length >> 8, length & 0xFF, kind, flags, stream) + payload


def frame_header(data: bytes, at: int) -> tuple[int, int, int, int]:
    """Length, type, flags and stream of the frame at `at`."""
    high, low, kind, flags, stream = _LENGTH_AND_KIND.unpack_from(data, at)
    return high << 8 | low, kind, flags, stream & _LAST_31


def settings(values: dict[Setting, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(name, value) for name, value in values.items()))


def read_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    """The names and values of SETTINGS; PeerError for values that are not allowed."""
    if len(payload) % _SETTING.size:
        raise PeerError(Code.FRAME_SIZE_ERROR, "SETTINGS has a wrong length")
    for name, value in _SETTING.iter_unpack(payload):
        if name == Setting.ENABLE_PUSH and value > 1:
            raise PeerError(Code.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
        if name == Setting.INITIAL_WINDOW_SIZE and value > LARGEST_WINDOW:
            raise PeerError(Code.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is too large")
        if name == Setting.MAX_FRAME_SIZE and not LARGEST <= value < 2**24:
            raise PeerError(Code.PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of range")
        yield name, value


def window_update(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, _UINT32.pack(more))


def reset(stream: int, code: Code) -> bytes:
    return frame(RST_STREAM, 0, stream, _UINT32.pack(code))


def goaway(last: int, code: Code) -> bytes:
    """The frame that ends a connection: streams after `last` were not processed."""
    return frame(GOAWAY, 0, 0, _UINT32.pack(last) + _UINT32.pack(code))


def uint31(payload: bytes, what: str) -> int:
    """The number in a payload of four bytes, without its first bit."""
    if len(payload) != _UINT32.size:
        raise PeerError(Code.FRAME_SIZE_ERROR, f"{what} has a wrong length")
    (number,) = _UINT32.unpack(payload)
    return int(number) & _LAST_31


def unpadded(payload: bytes, flags: int) -> bytes:
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise PeerError(Code.PROTOCOL_ERROR, "the padding exceeds the payload")
    return payload[1 : len(payload) - payload[0]]


def header_block(payload: bytes, flags: int, stream: int) -> bytes:
    """The fragment of the header block in the payload of HEADERS."""
    payload = unpadded(payload, flags)
    if not flags & WITH_PRIORITY:
        return payload
    if len(payload) < 5:
        raise PeerError(Code.FRAME_SIZE_ERROR, "HEADERS lacks its priority")
    check_priority(payload[:5], stream)
    return payload[5:]


def check_priority(payload: bytes, stream: int) -> None:
    """Priorities are ignored, but an invalid one is an error."""
    if len(payload) != 5:
        raise StreamError(stream, Code.FRAME_SIZE_ERROR, "PRIORITY has a wrong length")
    if uint31(payload[:4], "PRIORITY") == stream:
        raise StreamError(stream, Code.PROTOCOL_ERROR, "a stream depends on itself")
