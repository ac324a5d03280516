"""Rows of a task in portions: by number and size, the same portions whenever the batch is run again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def chunks(items: Iterable[Item], size: Callable[[Item], int], most: int, most_bytes: int) -> Iterator[list[Item]]:
    """Portions of at most so many items and bytes; an item that is larger than that comes alone."""
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
    """Two portions of one, to find what is wrong with it."""
    middle = len(items) // 2
    return items[:middle], items[middle:]


def request_key(identity: str, task: int, row: int, content: bytes) -> str:
    """A key that is the same whenever a batch repeats a request with these rows, and different for all others."""
    digest = hashlib.sha256(f"{identity}|{task}|{row}|".encode())
    digest.update(content)
    return digest.hexdigest()[:32]
