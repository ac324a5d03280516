"""Rows of a task as keys and what they are to hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RedisEntry:
    """One key and what it is to hold, or of which fields; None deletes it."""

    row: int
    key: str
    value: bytes | dict[str, bytes | None] | None

    @property
    def size(self) -> int:
        """Bytes, about."""
        value = self.value
        if isinstance(value, dict):
            return sum(len(name) + len(text or b"") for name, text in value.items()) + len(self.key)
        return len(value or b"") + len(self.key)
