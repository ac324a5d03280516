"""Errors of a store."""

from __future__ import annotations


class StoreDamagedError(Exception):
    """The store does not hold what was written. It is discarded and rebuilt from a snapshot and the log."""


class StoreClosedError(Exception):
    """The store was closed after it was looked up, for example because another copy replaced it: look it up again."""
