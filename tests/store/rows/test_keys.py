"""Keys sort as their values do, and come back as they were: against Python's own order, with values of all types."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.store.rows.keys import codec

TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
NUMBERS = st.floats(allow_nan=False)
SIMPLE: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float64(), NUMBERS),
    (pa.float32(), st.floats(allow_nan=False, width=32)),
    (pa.decimal128(38, 4), st.decimals(-(10**33), 10**33, allow_nan=False, places=4)),
    (pa.decimal128(10, 0), st.integers(-(10**9), 10**9).map(Decimal)),
    (pa.string(), st.text()),
    (pa.binary(), st.binary()),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), TIMES),
    (pa.timestamp("us", tz="UTC"), TIMES.map(lambda time: time.replace(tzinfo=UTC))),
]
IDS = [str(kind) for kind, _ in SIMPLE]


def first(value: Any) -> tuple[bool, Any]:
    """Nulls first; texts by code point, which is how Python compares them too."""
    return (value is not None, value)


@pytest.mark.parametrize(("kind", "values"), SIMPLE, ids=IDS)
@given(data=st.data())
def test_keys_sort_as_values(kind: pa.DataType, values: st.SearchStrategy[Any], data: st.DataObject) -> None:
    found = data.draw(st.lists(st.none() | values, max_size=20))
    keys = codec(kind)
    by_value = sorted(found, key=lambda one: (one is not None, one if one is not None else 0))
    assert [keys.decode(key)[0] for key in sorted(keys.encode(one) for one in found)] == by_value


@pytest.mark.parametrize(("kind", "values"), SIMPLE, ids=IDS)
@given(data=st.data())
def test_a_column_has_the_keys_of_its_values(
    kind: pa.DataType, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    array = pa.array(data.draw(st.lists(values | st.none(), max_size=8) | st.lists(values, max_size=8)), kind)
    keys = codec(kind)
    assert keys.column(array) == [keys.encode(one) for one in array.to_pylist()]


@given(st.lists(st.tuples(st.none() | st.text(), st.none() | st.integers(-5, 5), st.none() | NUMBERS)))
def test_columns_one_after_the_other_sort_column_by_column(rows: list[tuple[Any, ...]]) -> None:
    parts = [codec(kind) for kind in (pa.string(), pa.int32(), pa.float64())]

    def key(row: tuple[Any, ...]) -> bytes:
        return b"".join(part.encode(value) for part, value in zip(parts, row, strict=True))

    def back(data: bytes) -> tuple[Any, ...]:
        at, found = 0, []
        for part in parts:
            value, at = part.decode(data, at)
            found.append(value)
        assert at == len(data)
        return tuple(found)

    def order(row: tuple[Any, ...]) -> list[Any]:
        return [(value is not None, value if value is not None else 0) for value in row]

    assert [order(back(one)) for one in sorted(map(key, rows))] == sorted(map(order, rows))


NESTED = pa.struct(
    [
        ("tags", pa.list_(pa.string())),
        ("at", pa.struct([("day", pa.date32())])),
        ("by", pa.map_(pa.string(), pa.int64())),
    ]
)


@given(
    st.fixed_dictionaries(
        {
            "tags": st.none() | st.lists(st.none() | st.text()),
            "at": st.none() | st.fixed_dictionaries({"day": st.none() | st.dates()}),
            "by": st.none() | st.dictionaries(st.text(), st.none() | st.integers(-9, 9)),
        }
    )
)
def test_nested_values_come_back(value: dict[str, Any]) -> None:
    keys = codec(NESTED)
    data = keys.encode(value)
    assert keys.decode(data) == (value, len(data))


@given(st.lists(st.lists(st.text())))
def test_lists_sort_item_by_item(values: list[list[str]]) -> None:
    keys = codec(pa.list_(pa.string()))
    assert [keys.decode(key)[0] for key in sorted(map(keys.encode, values))] == sorted(values)


@given(st.dictionaries(st.text(), st.integers(-9, 9)))
def test_the_order_in_which_a_map_was_written_does_not_matter(value: dict[str, int]) -> None:
    keys = codec(pa.map_(pa.string(), pa.int64()))
    assert keys.encode(value) == keys.encode(list(reversed(value.items())))


def test_equal_numbers_have_one_key_and_nan_is_the_greatest() -> None:
    keys = codec(pa.float64())
    assert keys.encode(0.0) == keys.encode(-0.0)
    assert keys.encode(math.nan) == keys.encode(-math.nan) > keys.encode(math.inf)
    assert math.isnan(keys.decode(keys.encode(math.nan))[0])


def test_dates_before_1970() -> None:
    keys = codec(pa.date32())
    assert keys.encode(date(1969, 12, 31)) < keys.encode(date(1970, 1, 1))


def test_what_has_no_order_is_refused() -> None:
    with pytest.raises(TypeError, match="uint64"):
        codec(pa.uint64())
