"""What can be wrong with a store."""

from __future__ import annotations


class StoreDamagedError(Exception):
    """What is read is not what was written. Such a store is thrown away and made again from a snapshot and the log."""
