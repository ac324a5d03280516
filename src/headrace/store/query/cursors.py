"""Cursors: the end of a page, as a text that the caller passes to get the next page."""

from __future__ import annotations

import binascii
import hashlib
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from headrace.core.errors import RequestError

_NONCE = 12
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[bytes, str, bytes, bytes]).decode


@dataclass(frozen=True)
class Cursor:
    """The position of the last row of a page. The next page begins after it, even if the row no longer exists."""

    order: str
    """The order of the page: that of an index, of the row keys, or sorted."""
    values: bytes
    """The sort values of the row, encoded as keys."""
    key: bytes
    """The row's key, which orders rows with equal values."""

    def to_text(self, query: bytes, seal: bytes | None) -> str:
        """The text for the caller. `query` is the fingerprint of the query; a seal encrypts the text."""
        packed = _encode((query, self.order, self.values, self.key))
        if seal is not None:
            nonce = os.urandom(_NONCE)
            packed = nonce + _cipher(seal).encrypt(nonce, packed, None)
        return urlsafe_b64encode(packed).rstrip(b"=").decode()

    @staticmethod
    def from_text(text: str, query: bytes, seal: bytes | None) -> Cursor:
        """Read a cursor; RequestError when the text is not a cursor or belongs to another query."""
        try:
            packed = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
            if seal is not None:
                packed = _cipher(seal).decrypt(packed[:_NONCE], packed[_NONCE:], None)
            fingerprint, order, values, key = _decode(packed)
        except (ValueError, binascii.Error, InvalidTag, msgspec.DecodeError):
            hint = "pass the text of the previous page unchanged; omit $after for the first page"
            raise RequestError("bad-cursor", "$after is not a cursor", hint=hint) from None
        if fingerprint != query:
            raise other_query()
        return Cursor(order, values, key)


def _cipher(seal: bytes) -> AESGCM:
    # a secret can have any length, an AES key cannot
    return AESGCM(hashlib.blake2b(seal, digest_size=32).digest())


def other_query() -> RequestError:
    return RequestError(
        "bad-cursor",
        "$after belongs to another query",
        hint="keep $filter and $order_by unchanged, or restart without $after: the endpoint may have changed",
    )
