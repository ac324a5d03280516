"""Arrow columns to JSON objects, where Spark's to_json cannot be used."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pyarrow as pa

from headrace.core.encoding.python_values import python_values
from headrace.core.format import Encoder


class JsonEncoder(Encoder):
    """One JSON object per row, as Spark's to_json writes it, except that NaN and infinity are null."""

    def __init__(self, schema: pa.Schema, nulls: Literal["omit", "keep"]) -> None:
        self._row = pa.struct(list(schema))
        self._nulls = nulls

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        """UTF-8 JSON, one object per row."""
        encode = msgspec.json.Encoder(decimal_format="number").encode
        objects = python_values(rows, "strict")
        if self._nulls == "omit":
            objects = [_without_nulls(row, self._row) for row in objects]
        return pa.array(list(map(encode, objects)), pa.binary())


def _without_nulls(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {part.name: _without_nulls(value[part.name], part.type) for part in kind if value[part.name] is not None}
    if pa.types.is_map(kind):
        return {key: _without_nulls(item, kind.item_type) for key, item in value.items()}
    return [_without_nulls(item, kind.value_type) for item in value] if pa.types.is_list(kind) else value
