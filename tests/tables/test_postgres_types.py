from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.tables.postgres.types import TEXT, PostgresTypes, TypeRow

ROWS = {
    1: TypeRow("int4", True, 0, -1, 0),
    2: TypeRow("_int4", True, 0, -1, 1),
    3: TypeRow("text", True, 0, -1, 0),
    4: TypeRow("_text", True, 0, -1, 3),
    5: TypeRow("numeric", True, 0, -1, 0),
    6: TypeRow("price", False, 5, ((9 << 16) | 2) + 4, 0),
    7: TypeRow("bool", True, 0, -1, 0),
    8: TypeRow("date", True, 0, -1, 0),
    9: TypeRow("timestamp", True, 0, -1, 0),
    10: TypeRow("timestamptz", True, 0, -1, 0),
    11: TypeRow("bytea", True, 0, -1, 0),
    12: TypeRow("point", True, 0, -1, 0),
    13: TypeRow("bpchar", True, 0, -1, 0),
    14: TypeRow("float8", True, 0, -1, 0),
    15: TypeRow("point", False, 0, -1, 0),
    16: TypeRow("float4", True, 0, -1, 0),
    17: TypeRow("oidvector", True, 0, -1, 1),
}
TYPES = PostgresTypes(lambda numbers: {number: ROWS[number] for number in numbers if number in ROWS})
LAST = datetime(9999, 12, 31, 23, 59, 59, 999999)

READ: list[tuple[int, str, Any]] = [
    (1, "-12", -12),
    (5, "1.5", Decimal("1.5")),
    (5, "0.33333333333333333333", Decimal("0.333333333333333333")),
    (5, "0.0000000000000000005", Decimal("0.000000000000000001")),
    (5, "-0.0000000000000000005", Decimal("-0.000000000000000001")),
    (5, "NaN", None),
    (5, "-Infinity", None),
    (6, "12.30", Decimal("12.30")),
    (7, "t", True),
    (7, "f", False),
    (8, "2024-02-29", date(2024, 2, 29)),
    (8, "infinity", date(9999, 12, 31)),
    (8, "-infinity", date(1, 1, 1)),
    (9, "2024-02-29 01:02:03.04", datetime(2024, 2, 29, 1, 2, 3, 40000)),
    (9, "infinity", LAST),
    (10, "2024-02-29 01:02:03+00", datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC)),
    (10, "infinity", LAST.replace(tzinfo=UTC)),
    (11, "\\x00ff", b"\x00\xff"),
    (12, "(1.5,-2)", {"x": 1.5, "y": -2.0}),
    (13, "ab  ", "ab"),
    (14, "-Infinity", float("-inf")),
    (14, "1e-300", 1e-300),
    (16, "1.1", pytest.approx(1.1)),
    (15, "(1,2)", "(1,2)"),
    (17, "1 2", "1 2"),
    (99, "whatever", "whatever"),
    (2, "{}", []),
    (2, "{1,NULL,-3}", [1, None, -3]),
    (2, "[0:1]={1,2}", [1, 2]),
    (4, '{"a,b",NULL,"NULL","q\\"\\\\","",x}', ["a,b", None, "NULL", 'q"\\', "", "x"]),
]


@pytest.mark.parametrize(("number", "text", "value"), READ)
def test_one_value_and_a_column_of_it_are_read_alike(number: int, text: str, value: Any) -> None:
    kind = TYPES.of(number, -1)
    assert kind.parse(text) == value
    column = kind.column(pa.array([text, None, text], pa.string()))
    assert column.type == kind.arrow
    assert column.to_pylist() == [value, None, value]


def test_what_has_no_place_is_refused() -> None:
    for number, text in [
        (5, "1" + "0" * 20),
        (6, "123456789.00"),
        (8, "10000-01-01"),
        (8, "0044-03-15 BC"),
        (9, "10000-01-01 00:00:00"),
        (2, "{{1},{2}}"),
    ]:
        kind = TYPES.of(number, -1)
        with pytest.raises((ValueError, ArithmeticError)):
            kind.parse(text)
        with pytest.raises((ValueError, ArithmeticError)):
            kind.column(pa.array([text], pa.string()))


def test_numbers_of_digits() -> None:
    for precision, scale, arrow in [
        (9, 2, pa.decimal128(9, 2)),
        (38, 38, pa.decimal128(38, 38)),
        (3, 5, pa.decimal128(5, 5)),
        (5, -2, pa.decimal128(7, 0)),
        (50, 10, pa.decimal128(38, 10)),
    ]:
        assert TYPES.of(5, ((precision << 16) | (scale & 0x7FF)) + 4).arrow == arrow
    assert TYPES.of(5, -1).arrow == pa.decimal128(38, 18)
    assert TYPES.of(99, -1) is TEXT


def written(value: Any) -> str:
    """An array as the server writes it, with more quotes."""
    if isinstance(value, list):
        return "{" + ",".join(map(written, value)) + "}"
    return "NULL" if value is None else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


@settings(max_examples=40)
@given(st.lists(st.lists(st.none() | st.text(), min_size=2, max_size=2), min_size=1, max_size=5))
def test_any_array_is_read_back(value: list[list[str | None]]) -> None:
    assert TYPES.of(4, -1, dimensions=2).parse(written(value)) == value
    assert TYPES.of(4, -1).parse(written(value[0])) == value[0]
