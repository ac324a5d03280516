"""A row of an endpoint in the form in which it is served."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from headrace.store.rows.layout import unpack_row


class ServedRow(NamedTuple):
    """The JSON of a row, with its version and its row key."""

    version: int
    json: bytes
    key: bytes


def served_row(key: bytes, packed: bytes) -> ServedRow:
    """Check and unpack a stored row."""
    return ServedRow(*unpack_row(key, packed), key)


def served_rows(items: Iterable[tuple[bytes, bytes]]) -> list[ServedRow]:
    return [ServedRow(*unpack_row(key, packed), key) for key, packed in items]
