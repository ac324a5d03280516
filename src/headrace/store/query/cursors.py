"""Where a page ended, as a text that a caller hands back to get the next one."""

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
    """The place of the last row of a page: after it comes what is greater, whether or not the row is still there."""

    order: str
    """Which order the place is in: that of an index, of the row keys, or sorted."""
    values: bytes
    """What the row is sorted by, as the store's keys have it."""
    key: bytes
    """The row's key, that tells rows with equal values apart."""

    def to_text(self, query: bytes, seal: bytes | None) -> str:
        """For the caller. `query` is the fingerprint of what was asked; with a seal nobody can read what is in it."""
        packed = _encode((query, self.order, self.values, self.key))
        if seal is not None:
            nonce = os.urandom(_NONCE)
            packed = nonce + _cipher(seal).encrypt(nonce, packed, None)
        return urlsafe_b64encode(packed).rstrip(b"=").decode()

    @staticmethod
    def from_text(text: str, query: bytes, seal: bytes | None) -> Cursor:
        """The inverse; a RequestError says that it is no cursor, or one of another query."""
        try:
            packed = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
            if seal is not None:
                packed = _cipher(seal).decrypt(packed[:_NONCE], packed[_NONCE:], None)
            asked, order, values, key = _decode(packed)
        except (ValueError, binascii.Error, InvalidTag, msgspec.DecodeError):
            hint = "hand back what the page before gave, unchanged; leave it out for the first page"
            raise RequestError("bad-cursor", "$after is not a cursor", hint=hint) from None
        if asked != query:
            raise other_query()
        return Cursor(order, values, key)


def _cipher(seal: bytes) -> AESGCM:
    # a secret may have any length, a key may not
    return AESGCM(hashlib.blake2b(seal, digest_size=32).digest())


def other_query() -> RequestError:
    """The cursor is one, but the question has changed."""
    return RequestError(
        "bad-cursor",
        "$after belongs to another query",
        hint="keep $filter and $order_by as they were, or begin again without $after: the endpoint may have changed",
    )
