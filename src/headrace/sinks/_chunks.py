"""Rows of a task in portions, by number and size: a repeated batch has the same portions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def chunks(items: Iterable[Item], size: Callable[[Item], int], most: int, most_bytes: int) -> Iterator[list[Item]]:
    """Portions of at most `most` items and `most_bytes` bytes; a larger item is a portion by itself."""
    portion: list[Item] = []
    total = 0
    for item in items:
        length = size(item)
        if portion and (len(portion) >= most or total + length > most_bytes):
            yield portion
            portion, total = [], 0
        portion.append(item)
        total += length
    if portion:
        yield portion


def halves(items: Sequence[Item]) -> tuple[Sequence[Item], Sequence[Item]]:
    """The two halves of a portion, to find the item at fault."""
    middle = len(items) // 2
    return items[:middle], items[middle:]


def request_key(identity: str, task: int, row: int, content: bytes) -> str:
    """A key that is the same whenever a batch repeats a request with these rows, and different for all others."""
    digest = hashlib.sha256(f"{identity}|{task}|{row}|".encode())
    digest.update(content)
    return digest.hexdigest()[:32]
