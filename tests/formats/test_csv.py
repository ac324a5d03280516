from __future__ import annotations

import csv
import io
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.format import Decoded
from headrace.core.schema import from_ddl
from headrace.formats.csv import CsvFormat

NOWHERE = Context(Path("."), "state")


def decode(format: CsvFormat, *values: bytes | None, wanted: str | None = None) -> Decoded:
    schema = from_ddl(wanted) if wanted else format.record_schema(NOWHERE)
    return format.decoder(NOWHERE, schema).decode(pa.array(values, pa.binary()))


TYPES = CsvFormat(columns="b boolean, i int, f double, d decimal(6,2), s string, day date, at timestamp, x binary")
LINE = b"true,-1,1.5,12.5,\xc3\xa9 ,2024-02-29,2024-01-01T00:00:00+01:00,AAE="
ROW = {
    "b": True,
    "i": -1,
    "f": 1.5,
    "d": Decimal("12.50"),
    "s": "é ",
    "day": date(2024, 2, 29),
    "at": datetime(2023, 12, 31, 23, tzinfo=UTC),
    "x": b"\0\1",
}


def test_every_type_both_ways_of_reading() -> None:
    quoted = b'true,-1,1.5,12.5,\xc3\xa9 ,2024-02-29,2024-01-01T00:00:00+01:00,"AAE="'
    assert decode(TYPES, LINE, b",,,,,,,").rows.to_pylist() == [ROW, dict.fromkeys(ROW)]
    assert decode(TYPES, LINE, quoted).rows.to_pylist() == [ROW, ROW]


def test_bad_records_have_their_reasons() -> None:
    format = CsvFormat(columns="i int, s string")
    cases: dict[bytes | None, str | None] = {
        b"1,a": None,
        b"1": "malformed",
        b"1,a,b": "malformed",
        b"1,\xff": "malformed",
        b'1,"a': "malformed",
        b"1,a\n2,b": "malformed",
        b'1,"a\nb"': None,
        b"x,a": "wrong-type",
        b"3000000000,a": "wrong-type",
        b" 1,a": "wrong-type",
        b"": "empty",
        None: "empty",
    }
    decoded = decode(format, *cases)
    found = {one.index: one.reason for one in decoded.bad}
    assert [found.get(i) for i in range(len(cases))] == list(cases.values())
    assert decoded.rows.to_pylist() == [{"i": 1, "s": "a"}, {"i": 1, "s": "a\nb"}]


@pytest.mark.parametrize("damage", [b"1", b"x,a", b'1,"', b"1,a\n2,b", b"\n1,a"])
def test_one_bad_record_costs_only_itself(damage: bytes) -> None:
    lines = [b"%d,a" % i for i in range(20_000)]
    lines[3] = damage
    decoded = decode(CsvFormat(columns="i int, s string"), *lines)
    assert [one.index for one in decoded.bad] == [3]
    assert decoded.rows.column("i").to_pylist() == [i for i in range(20_000) if i != 3]


def test_delimiter_quote_null_and_wanted_columns() -> None:
    format = CsvFormat(columns="a string, b int, c string", delimiter=";", quote="'", null_value="-")
    decoded = decode(format, b"'x;y';-;", b"it''s;1;z", wanted="c string, a string")
    assert decoded.rows.to_pylist() == [{"c": "", "a": "x;y"}, {"c": "z", "a": "it''s"}]
    plain = decode(format, b"a;1;-", wanted="c string, b int")
    assert plain.rows.to_pylist() == [{"c": None, "b": 1}]
    assert decode(format, b"a;1;-", b"b;2;c", wanted=None).rows.num_rows == 2
    nothing = format.decoder(NOWHERE, pa.schema([])).decode(pa.array([b"a;1;-", b"b;2;c"]))
    assert nothing.rows.num_rows == 2


def test_a_header_line_is_set_aside_when_there_may_be_one() -> None:
    format = CsvFormat(columns="a string, b string", header=True)
    decoded = decode(format, b"a,b", b"1,2")
    assert [(one.index, one.reason) for one in decoded.bad] == [(0, "header")]
    assert decoded.rows.to_pylist() == [{"a": "1", "b": "2"}]


@pytest.mark.parametrize(
    ("ddl", "code"),
    [("a int, c int", "unknown-column"), ("a int", "missing-column"), ("a int, b array<int>", "wrong-column-type")],
)
def test_columns_that_cannot_be_written(ddl: str, code: str) -> None:
    with pytest.raises(ProjectError) as caught:
        CsvFormat(columns="a int, b int").encoder(NOWHERE, from_ddl(ddl))
    assert caught.value.code == code


def test_nested_columns_and_unknown_columns_are_refused() -> None:
    with pytest.raises(ProjectError) as caught:
        CsvFormat(columns="a array<int>").record_schema(NOWHERE)
    assert caught.value.code == "wrong-column-type"
    with pytest.raises(ProjectError) as caught:
        CsvFormat(columns="amount int").decoder(NOWHERE, from_ddl("amnt int"))
    assert (caught.value.code, "'amount'" in str(caught.value.hint)) == ("unknown-column", True)


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
record = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "s": st.none() | texts,
        "at": st.none() | st.datetimes(datetime(1000, 1, 1), timezones=st.just(UTC)),
        "day": st.none() | st.dates(date(1000, 1, 1)),
        "d": st.none() | st.decimals(-9999, 9999, places=2),
        "f": st.none() | st.floats(allow_nan=False),
        "b": st.none() | st.binary(min_size=1),
        "t": st.none() | st.booleans(),
    }
)


@settings(max_examples=50, deadline=None)
@given(records=st.lists(record, max_size=20), delimiter=st.sampled_from([",", ";", "\t", "|"]))
def test_encoding_any_rows_and_decoding_them_gives_them_back(records: list[Any], delimiter: str) -> None:
    ddl = "i bigint, s string, at timestamp, day date, d decimal(6,2), f double, b binary, t boolean"
    format = CsvFormat(columns=ddl, delimiter=delimiter)
    schema = format.record_schema(NOWHERE)
    batch = pa.RecordBatch.from_pylist(records, schema)
    values = format.encoder(NOWHERE, schema).encode(batch)
    decoded = format.decoder(NOWHERE, schema).decode(values)
    assert not decoded.bad
    assert decoded.rows == batch


lines = st.text(st.sampled_from('ab1,",\n\r;é ')).map(str.encode) | st.binary(max_size=5) | st.none()


@settings(max_examples=80, deadline=None)
@given(values=st.lists(lines, max_size=10))
def test_any_batch_is_decoded_as_the_csv_library_does(values: list[bytes | None]) -> None:
    format = CsvFormat(columns="a string, b string", null_value="NULL")
    decoded = decode(format, *values)
    bad = {one.index for one in decoded.bad}
    assert decoded.rows.num_rows + len(bad) == len(values)
    expected = [
        next(csv.reader(io.StringIO(v.decode(), newline=""), strict=True))
        for i, v in enumerate(values)
        if i not in bad and v
    ]
    assert [list(row.values()) for row in decoded.rows.to_pylist()] == expected
