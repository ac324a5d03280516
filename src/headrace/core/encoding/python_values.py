"""Arrow columns as Python values."""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa


def python_values(rows: pa.Array | pa.RecordBatch, twice: Literal["lossy", "strict"]) -> list[Any]:
    """Convert rows as `to_pylist` does, with maps as dicts.

    `twice` handles a key that occurs twice in a map: `lossy` uses the last value, `strict` raises an error. The option
    is passed to Arrow only when a column has a map, because it makes the conversion thirty times slower.
    """
    kinds = rows.schema.types if isinstance(rows, pa.RecordBatch) else [rows.type]
    values: list[Any] = rows.to_pylist(maps_as_pydicts=twice) if any(map(_has_map, kinds)) else rows.to_pylist()
    return values


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_map(kind.field(index).type) for index in range(kind.num_fields))
