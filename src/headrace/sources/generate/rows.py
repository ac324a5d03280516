"""Generated rows as Arrow batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.core.schema import TIMESTAMP
from headrace.sources.generate.fields import Draw, GeneratedField


@dataclass(frozen=True)
class RowMaker:
    """Generates any range of rows, always the same ones."""

    fields: Mapping[str, GeneratedField]
    rate: int
    seed: int
    skew: float
    disorder_us: int
    epoch_ms: int

    def batch(self, start: int, stop: int) -> pa.RecordBatch:
        """Rows `start` to `stop` (exclusive), with `_offset` and `_timestamp` after their fields."""
        index = np.arange(start, stop, dtype=np.int64)
        arrival = self.epoch_ms * 1000 + index * 1_000_000 // self.rate
        event = arrival - (Draw(index, arrival, arrival, self.seed, "", 0).unit() * self.disorder_us).astype(np.int64)
        columns = {
            name: field.column(Draw(index, event, arrival, self.seed, name, self.skew))
            for name, field in self.fields.items()
        }
        rows = _structs(columns)
        rows |= {"_offset": pa.array(index), "_timestamp": pa.array(arrival).cast(TIMESTAMP)}
        return pa.RecordBatch.from_pydict(rows)


def row_schema(fields: Mapping[str, GeneratedField]) -> pa.Schema:
    """The columns of the rows; dotted names are fields of structs."""
    empty = {name: pa.array([], field.arrow_type) for name, field in fields.items()}
    return pa.schema([(name, column.type) for name, column in _structs(empty).items()])


def _structs(columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """The columns with `driver.name` and `driver.age` gathered into the struct `driver`."""
    nested: dict[str, dict[str, pa.Array]] = {}
    columns_by_name: dict[str, pa.Array | None] = {}
    for name, column in columns.items():
        parent, dot, child = name.partition(".")
        columns_by_name[parent] = None if dot else column
        if dot:
            nested.setdefault(parent, {})[child] = column
    return {name: _struct(nested[name]) if column is None else column for name, column in columns_by_name.items()}


def _struct(columns: Mapping[str, pa.Array]) -> pa.StructArray:
    parts = _structs(columns)
    return pa.StructArray.from_arrays(list(parts.values()), names=list(parts))
