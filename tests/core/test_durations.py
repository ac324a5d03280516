from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from headrace.core.options.durations import Duration, format_duration, parse_duration, spark_interval


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("500ms", 500),
        ("10s", 10_000),
        ("10 seconds", 10_000),
        ("5min", 300_000),
        ("5 m", 300_000),
        ("1h 30m", 5_400_000),
        ("1d", 86_400_000),
        ("1.5s", 1_500),
        ("0.1s", 100),
        (" 2H ", 7_200_000),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == timedelta(milliseconds=milliseconds)


@pytest.mark.parametrize(
    "text",
    ["", "10", "s", "10 parsecs", "-5s", "0s", "5s x", "1e3s", "٣s", "0.5ms", "1.0001s", "99999999999d", "1 000s"],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="500ms"):
        parse_duration(text)


@given(st.integers(min_value=1, max_value=10**12))
def test_what_is_written_can_be_read(milliseconds: int) -> None:
    value = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(value)) == value


def test_the_shortest_exact_text_is_written() -> None:
    texts = [format_duration(timedelta(seconds=s)) for s in (90, 60, 7200, 172_800, 1.5)]
    assert texts == ["90s", "1min", "2h", "2d", "1500ms"]
    assert spark_interval(timedelta(seconds=1.5)) == "1500 milliseconds"


def test_a_number_without_unit_is_refused_with_a_proposal() -> None:
    with pytest.raises(ValidationError, match=r"10 has no unit; write e\.g\. 10s or 10ms"):
        TypeAdapter(Duration).validate_python(10)
