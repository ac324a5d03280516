"""Indices of rows and bad records in a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.format import Bad, Decoded, bisect

Decode = Callable[[pa.Array], Decoded]


def moved(bad: Sequence[Bad], positions: Sequence[int]) -> list[Bad]:
    """Bad records of a part of a batch, by their index in the whole."""
    return [Bad(positions[record.index], record.reason, record.detail) for record in bad]


def set_aside(values: pa.Array, bad: Sequence[Bad], decode: Decode) -> Decoded:
    """Decode all records except known bad ones."""
    if not bad:
        return decode(values)
    out = {record.index for record in bad}
    positions = [index for index in range(len(values)) if index not in out]
    rest = decode(values.take(pa.array(positions, pa.int64())))
    return Decoded(rest.rows, tuple(sorted([*bad, *moved(rest.bad, positions)], key=lambda record: record.index)))


def nulls(values: pa.Array) -> list[Bad]:
    """A bad record for every null value."""
    if not values.null_count:
        return []
    return [
        Bad(index, "empty", "the record has no value") for index in pc.indices_nonzero(values.is_null()).to_pylist()
    ]


def stacked(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    if not batches[0].num_columns:
        rows = sum(batch.num_rows for batch in batches)
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    columns = [pa.concat_arrays([batch.column(i) for batch in batches]) for i in range(batches[0].num_columns)]
    return pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)


def rows_around_bad(
    objects: Sequence[Any],
    rows: Callable[[Sequence[Any]], pa.RecordBatch],
    positions: Sequence[int],
    bad: Sequence[Bad],
) -> Decoded:
    """Rows of parsed records, without those whose values do not fit their columns."""
    try:
        return Decoded(rows(objects), tuple(bad))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError):
        numbers = pa.array(range(len(objects)), pa.int64())
        decoded = bisect(numbers, lambda part: rows([objects[i] for i in part.to_pylist()]), lambda _: "wrong-type")
        return Decoded(
            decoded.rows, tuple(sorted([*bad, *moved(decoded.bad, positions)], key=lambda record: record.index))
        )
