"""Heads of calls: what the header blocks of HTTP/2 say, and the blocks that answer them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import quote

import hpack

from headrace.serve.grpc.http2.frames import Code, PeerError

_LARGEST_LIST = 32_768
_REMEMBERED = 256
_PSEUDO = (b":method", b":scheme", b":path", b":authority")
_NEEDED = frozenset((":method", ":scheme", ":path"))
# of a connection, not of a request; HTTP/2 forbids them
_FORBIDDEN = frozenset((b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"))
_WITH_INDEX_ONLY = 0x80
_LONG_INDEX = 0xFF
_KIND, _TABLE_SIZE = 0xE0, 0x20
_PER_HEADER = 32
_LONGEST_MESSAGE = 4_000


class BadHeadersError(Exception):
    """A head that no request may have: its stream ends."""


@dataclass(frozen=True)
class Head:
    """What a call's headers say."""

    path: str
    method: str
    metadata: dict[str, str] = field(repr=False)


class HeadReader:
    """The headers of one connection, which remembers what was said before: blocks must come in their order."""

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=_LARGEST_LIST)
        self._known: dict[bytes, Head] = {}

    def read(self, block: bytes) -> Head:
        """The head that a block says."""
        known = self._known.get(block)
        if known is not None:
            return known
        # A block of nothing but references means the same until another changes what they refer to; nearly all calls
        # of a connection begin with the same one.
        referring = min(block, default=0) >= _WITH_INDEX_ONLY and _LONG_INDEX not in block
        if not referring or len(self._known) >= _REMEMBERED:
            self._known.clear()
        head = _checked(self._pairs(block))
        if referring:
            self._known[block] = head
        return head

    def skip(self, block: bytes) -> None:
        """Trailers of a request: nothing in them is of use, but later blocks may refer to them."""
        self._known.clear()
        if any(name.startswith(b":") for name, _ in self._pairs(block)):
            raise BadHeadersError("a pseudo header among the trailers")

    def _pairs(self, block: bytes) -> list[tuple[bytes, bytes]]:
        try:
            found = self._referred(block)
            if rest := block[len(found) :]:
                found += self._decoder.decode(rest, raw=True)
            return found
        except hpack.OversizedHeaderListError as error:
            raise PeerError(Code.ENHANCE_YOUR_CALM, "too many headers") from error
        except (hpack.HPACKError, ValueError, IndexError) as error:
            raise PeerError(Code.COMPRESSION_ERROR, "a header block that cannot be read") from error

    def _referred(self, block: bytes) -> list[tuple[bytes, bytes]]:
        """The headers that a block begins with and only refers to: one byte each, and nothing is remembered of them.

        Most are such, and the decoder takes longer for one than for looking it up.
        """
        table, found, size = self._decoder.header_table, list[tuple[bytes, bytes]](), 0
        for byte in block:
            if not _WITH_INDEX_ONLY < byte < _LONG_INDEX:
                # the decoder has to see what must stand at the beginning
                return [] if byte & _KIND == _TABLE_SIZE else found
            name, value = table.get_by_index(byte - _WITH_INDEX_ONLY)
            found.append((bytes(name), bytes(value)))
            size += len(name) + len(value) + _PER_HEADER
            if size > _LARGEST_LIST:
                raise hpack.OversizedHeaderListError
        return found


def _checked(pairs: Iterable[tuple[bytes, bytes]]) -> Head:
    pseudo: dict[str, str] = {}
    metadata: dict[str, str] = {}
    for name, value in pairs:
        text = value.decode("latin-1")
        if name.startswith(b":"):
            if metadata or name not in _PSEUDO or name.decode() in pseudo:
                raise BadHeadersError("a pseudo header that is wrong, late or there twice")
            pseudo[name.decode()] = text
            continue
        if name in _FORBIDDEN or name.lower() != name or (name == b"te" and value != b"trailers"):
            raise BadHeadersError("a header that a request may not have")
        key = name.decode("latin-1")
        metadata[key] = f"{metadata[key]},{text}" if key in metadata else text
    if not pseudo.keys() >= _NEEDED or not pseudo[":path"]:
        raise BadHeadersError("a request without method, scheme or path")
    return Head(pseudo[":path"], pseudo[":method"], metadata)


def literal(name: str, value: str) -> bytes:
    """One header that the peer need not remember."""
    key, text = name.encode(), value.encode("latin-1", "replace")
    return b"\x00" + _length(key) + key + _length(text) + text


def _length(data: bytes) -> bytes:
    """The length of a text: seven bits, and as many times seven as are needed."""
    rest = len(data) - 0x7F
    if rest < 0:
        return bytes([len(data)])
    parts = [0x7F]
    while rest >= 0x80:
        parts.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*parts, rest])


def status(http: int, content_type: str) -> bytes:
    """The block that begins an answer."""
    return literal(":status", str(http)) + literal("content-type", content_type)


def outcome(status: int, message: str = "", further: Iterable[tuple[str, str]] = ()) -> bytes:
    """The block that ends an answer: how the call went."""
    block = literal("grpc-status", str(status))
    if message:
        block += literal("grpc-message", escaped(message))
    return block + b"".join(literal(name, escaped(value)) for name, value in further)


def escaped(text: str) -> str:
    """Text as `grpc-message` has it: what is not plain ASCII by its percent codes."""
    return quote(text[:_LONGEST_MESSAGE], safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")


BEGIN = status(200, "application/grpc")
OK = outcome(0)
