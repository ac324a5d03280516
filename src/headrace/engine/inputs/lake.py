"""Metadata of lake tables, read without Spark."""

from __future__ import annotations

from headrace.core.positions import Position
from headrace.sources.lake import LakeSource


def is_table(path: str) -> bool:
    from deltalake import DeltaTable

    return bool(DeltaTable.is_deltatable(path))


def newest_version(path: str) -> int:
    from deltalake import DeltaTable

    return int(DeltaTable(path).version())


def starting_options(path: str, start: Position | None) -> dict[str, str]:
    """The options with which Delta's streaming reader begins at a position; empty for the whole table."""
    from deltalake import DeltaTable

    return {} if start is None else LakeSource(path=path).stream_options(start, DeltaTable(path).version())
