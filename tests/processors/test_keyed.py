from __future__ import annotations

import pandas as pd
import pyarrow as pa

from headrace.processors._keyed.state import _pack, _unpacked

SCHEMA = pa.schema([("key", pa.string()), ("n", pa.int64())])


def task(*values: list[int | None]) -> list[pa.RecordBatch]:
    """The Arrow batches of a task."""
    columns = [{"key": ["k"] * len(batch), "n": batch, "_bucket": [0] * len(batch)} for batch in values]
    schema = SCHEMA.append(pa.field("_bucket", pa.int32()))
    return [pa.RecordBatch.from_pydict(batch, schema=schema) for batch in columns]


def packed(batches: list[pa.RecordBatch]) -> pd.DataFrame:
    return pa.Table.from_batches(_pack(iter(batches))).to_pandas()


def test_the_order_of_tasks_does_not_depend_on_their_numbers() -> None:
    tasks = [packed(task([1, 2], [3])), packed(task([], [4, None], [5])), packed(task([6]))]
    there = _unpacked(iter(tasks), SCHEMA).column("n").to_pylist()
    back = _unpacked(iter(tasks[::-1]), SCHEMA).column("n").to_pylist()
    assert there == back
    assert sorted(there, key=str) == [1, 2, 3, 4, 5, 6, None]
    assert [n for n in there if n in (1, 2, 3)] == [1, 2, 3], "a task keeps its order"
    assert [n for n in there if n in (4, None, 5)] == [4, None, 5]
