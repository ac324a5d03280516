"""Questions about lake tables that need no Spark."""

from __future__ import annotations


def is_table(path: str) -> bool:
    """Whether there is a Delta table."""
    from deltalake import DeltaTable

    return bool(DeltaTable.is_deltatable(path))
