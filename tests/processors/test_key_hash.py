from __future__ import annotations

import hashlib
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.processors._keyed.key_hash import key_hashes

TIMES = pa.timestamp("us", "UTC")


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def hashes(rows: pa.RecordBatch, *keys: str) -> list[tuple[int, int]]:
    found = key_hashes(rows, keys)
    return list(zip(found.high.tolist(), found.low.tolist(), strict=True))


VALUES = [
    (pa.string(), ["a", "", "ä", "b"]),
    (pa.binary(), [b"a", b"", b"\xff\x00", b"b"]),
    (pa.int64(), [0, 1, -1, 2**63 - 1]),
    (pa.int8(), [0, 1, -1]),
    (pa.bool_(), [True, False]),
    (pa.float64(), [0.0, 1.5, float("inf"), float("nan")]),
    (pa.float32(), [0.0, 1.5]),
    (pa.decimal128(10, 2), [Decimal("1.00"), Decimal("-1.00")]),
    (pa.date32(), [date(2026, 1, 1), date(1, 1, 1)]),
    (TIMES, [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)]),
    (pa.timestamp("us"), [datetime(2026, 1, 1), datetime(2026, 1, 2)]),
    (pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 1, "b": "x"}, {"a": 1, "b": None}]),
    (pa.list_(pa.string()), [["a", "b"], ["ab"], []]),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_every_type_has_hashes_of_its_own_and_keeps_them(kind: pa.DataType, values: list[Any]) -> None:
    there = hashes(batch(k=pa.array([*values, None], kind)), "k")
    again = hashes(batch(k=pa.array([None, *values[::-1]], kind)).slice(1), "k")
    assert there[:-1] == again[::-1]
    assert len(set(there[:-1])) == len(values)


def test_what_is_equal_has_the_same_hash() -> None:
    zeros = batch(f=pa.array([0.0, -0.0]), s=pa.array([{"x": [0.0]}, {"x": [-0.0]}]))
    for key in ("f", "s", "s.x"):
        assert len(set(hashes(zeros, key))) == 1, key


def test_it_never_changes() -> None:
    """What has been seen is kept for as long as a flow lives."""
    assert hashes(batch(k=pa.array(["order-1"])), "k") == [(733996287445233238, -2952914084388101588)]
    of_both = struct.unpack("<qq", hashlib.blake2b(b"1:71:x", digest_size=16).digest())
    assert hashes(batch(a=pa.array([7]), b=pa.array(["x"])), "a", "b") == [of_both]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.none() | st.text(max_size=3), st.none() | st.text(max_size=3)), min_size=1, max_size=8))
def test_several_keys_are_equal_where_each_of_them_is(rows: list[tuple[str | None, str | None]]) -> None:
    given_rows = batch(a=pa.array([a for a, _ in rows], pa.string()), b=pa.array([b for _, b in rows], pa.string()))
    found = hashes(given_rows, "a", "b")
    assert len(set(found)) == len(set(rows))
    assert key_hashes(given_rows, ["a", "b"]).keyless.tolist() == [row == (None, None) for row in rows]


def test_of_no_rows() -> None:
    found = key_hashes(batch(k=pa.array([], pa.string())), ["k"])
    assert [len(found.high), len(found.low), len(found.keyless)] == [0, 0, 0]
    assert found.high.dtype == np.int64
