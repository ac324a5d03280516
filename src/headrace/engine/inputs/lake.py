"""Questions about lake tables that need no Spark."""

from __future__ import annotations

from headrace.core.positions import Position


def is_table(path: str) -> bool:
    """Whether there is a Delta table."""
    from deltalake import DeltaTable

    return bool(DeltaTable.is_deltatable(path))


def newest_version(path: str) -> int:
    """The newest version of a Delta table."""
    from deltalake import DeltaTable

    return int(DeltaTable(path).version())


def starting_options(path: str, start: Position | None) -> dict[str, str]:
    """What Delta's streaming reader is told so that it begins at a position; nothing for the whole table."""
    from deltalake import DeltaTable

    from headrace.sources.lake import LakeSource

    return {} if start is None else LakeSource(path=path).stream_options(start, DeltaTable(path).version())
