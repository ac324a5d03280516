"""Reads the header blocks of requests (HPACK) and writes those of responses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import hpack

from headrace.serve.grpc.http2.frames import Code, PeerError

_LARGEST_LIST = 32_768
_CACHED = 256
_PSEUDO = (b":method", b":scheme", b":path", b":authority")
_NEEDED = frozenset((":method", ":scheme", ":path"))
# connection-specific headers, which HTTP/2 forbids
_FORBIDDEN = frozenset((b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"))
_WITH_INDEX_ONLY = 0x80
_LONG_INDEX = 0xFF
_KIND, _TABLE_SIZE = 0xE0, 0x20
_PER_HEADER = 32


class BadHeadersError(Exception):
    """The headers of a request are not valid: its stream ends."""


@dataclass(frozen=True)
class RequestHeaders:
    """The headers of a request."""

    path: str
    method: str
    metadata: dict[str, str] = field(repr=False)


class HeaderReader:
    """Reads the header blocks of one connection. HPACK keeps state: blocks must be read in order."""

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=_LARGEST_LIST)
        self._cache: dict[bytes, RequestHeaders] = {}

    def read(self, block: bytes) -> RequestHeaders:
        cached = self._cache.get(block)
        if cached is not None:
            return cached
        # A block that consists of indexed fields only has the same meaning until another block changes the table;
        # nearly all requests of a connection have the same block.
        indexed_only = min(block, default=0) >= _WITH_INDEX_ONLY and _LONG_INDEX not in block
        if not indexed_only or len(self._cache) >= _CACHED:
            self._cache.clear()
        headers = _checked(self._pairs(block))
        if indexed_only:
            self._cache[block] = headers
        return headers

    def skip(self, block: bytes) -> None:
        """Read the trailers of a request: their content is not used, but later blocks may refer to it."""
        self._cache.clear()
        if any(name.startswith(b":") for name, _ in self._pairs(block)):
            raise BadHeadersError("the trailers contain a pseudo header")

    def _pairs(self, block: bytes) -> list[tuple[bytes, bytes]]:
        try:
            pairs = self._indexed(block)
            if rest := block[len(pairs) :]:
                pairs += self._decoder.decode(rest, raw=True)
            return pairs
        except hpack.OversizedHeaderListError as error:
            raise PeerError(Code.ENHANCE_YOUR_CALM, "too many headers") from error
        except (hpack.HPACKError, ValueError, IndexError) as error:
            raise PeerError(Code.COMPRESSION_ERROR, "a header block cannot be decoded") from error

    def _indexed(self, block: bytes) -> list[tuple[bytes, bytes]]:
        """The leading indexed fields of a block: one byte each, without effect on the table.

        Most fields are indexed, and a table lookup is faster than the decoder.
        """
        table, pairs, size = self._decoder.header_table, list[tuple[bytes, bytes]](), 0
        for byte in block:
            if not _WITH_INDEX_ONLY < byte < _LONG_INDEX:
                # the decoder must see a table size update, which is allowed only at the beginning
                return [] if byte & _KIND == _TABLE_SIZE else pairs
            name, value = table.get_by_index(byte - _WITH_INDEX_ONLY)
            pairs.append((bytes(name), bytes(value)))
            size += len(name) + len(value) + _PER_HEADER
            if size > _LARGEST_LIST:
                raise hpack.OversizedHeaderListError
        return pairs


def _checked(pairs: Iterable[tuple[bytes, bytes]]) -> RequestHeaders:
    pseudo: dict[str, str] = {}
    metadata: dict[str, str] = {}
    for name, value in pairs:
        text = value.decode("latin-1")
        if name.startswith(b":"):
            if metadata or name not in _PSEUDO or name.decode() in pseudo:
                raise BadHeadersError("a pseudo header is unknown, repeated or after other headers")
            pseudo[name.decode()] = text
            continue
        if name in _FORBIDDEN or name.lower() != name or (name == b"te" and value != b"trailers"):
            raise BadHeadersError("a header is not allowed in a request")
        key = name.decode("latin-1")
        metadata[key] = f"{metadata[key]},{text}" if key in metadata else text
    if not pseudo.keys() >= _NEEDED or not pseudo[":path"]:
        raise BadHeadersError("the request has no method, scheme or path")
    return RequestHeaders(pseudo[":path"], pseudo[":method"], metadata)


def literal(name: str, value: str) -> bytes:
    """A header field that is not added to the peer's table."""
    key, text = name.encode(), value.encode("latin-1", "replace")
    return b"\x00" + _length(key) + key + _length(text) + text


def _length(data: bytes) -> bytes:
    """The length of a string: an HPACK integer with a prefix of seven bits."""
    rest = len(data) - 0x7F
    if rest < 0:
        return bytes([len(data)])
    parts = [0x7F]
    while rest >= 0x80:
        parts.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*parts, rest])


def response_headers(status: int, content_type: str) -> bytes:
    return literal(":status", str(status)) + literal("content-type", content_type)
