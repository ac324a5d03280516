"""Arrow columns as Python values."""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa


def python_values(rows: pa.Array | pa.RecordBatch, twice: Literal["lossy", "strict"]) -> list[Any]:
    """What `to_pylist` gives, maps as mappings; of a key that is `twice` in one the last counts, or it is an error.

    Said of columns without a map, that costs thirty times what it does to leave it out.
    """
    kinds = rows.schema.types if isinstance(rows, pa.RecordBatch) else [rows.type]
    values: list[Any] = rows.to_pylist(maps_as_pydicts=twice) if any(map(_has_map, kinds)) else rows.to_pylist()
    return values


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_map(kind.field(place).type) for place in range(kind.num_fields))
