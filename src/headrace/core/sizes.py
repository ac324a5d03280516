"""The size of Arrow columns in bytes, without reading their rows."""

from __future__ import annotations

import pyarrow as pa


def binary_bytes(column: pa.Array) -> int:
    """Return the total size of a binary or text column: the distance between its first and last offset."""
    length = len(column)
    if not length:
        return 0
    wide = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    offsets = memoryview(column.buffers()[1]).cast("q" if wide else "i")
    return int(offsets[column.offset + length] - offsets[column.offset])
