"""What can be wrong with a store."""

from __future__ import annotations


class StoreDamagedError(Exception):
    """What is read is not what was written. Such a store is thrown away and made again from a snapshot and the log."""


class StoreClosedError(Exception):
    """The store was closed since it was looked up, as when another copy takes its place: look it up again."""
