from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.core.encoding.python_values import python_values

MAPS = pa.map_(pa.string(), pa.int64())
PAIRS = [("a", 1), ("b", 2)]
TWICE = [("a", 1), ("a", 2)]


@pytest.mark.parametrize(
    ("kind", "given", "found"),
    [
        (pa.int64(), 1, 1),
        (pa.list_(pa.struct([("n", pa.bool_())])), [{"n": True}, None], [{"n": True}, None]),
        (MAPS, PAIRS, {"a": 1, "b": 2}),
        (pa.list_(pa.struct([("m", MAPS)])), [{"m": PAIRS}], [{"m": {"a": 1, "b": 2}}]),
        (pa.map_(pa.string(), MAPS), [("m", PAIRS)], {"m": {"a": 1, "b": 2}}),
    ],
)
def test_maps_are_mappings_wherever_they_are(kind: pa.DataType, given: object, found: object) -> None:
    column = pa.array([given, None], kind)
    assert python_values(column, "strict") == [found, None]
    rows = pa.RecordBatch.from_pydict({"x": [1, 2], "column": column})
    assert python_values(rows, "strict") == [{"x": 1, "column": found}, {"x": 2, "column": None}]


def test_a_key_that_is_there_twice() -> None:
    column = pa.array([TWICE], MAPS)
    with pytest.warns(UserWarning, match="already encountered"):
        assert python_values(column, "lossy") == [{"a": 2}]
    with pytest.raises(KeyError):
        python_values(column, "strict")
