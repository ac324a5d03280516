from __future__ import annotations

import json
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
from headrace.core.schema import from_ddl, to_ddl
from headrace.formats.json import JsonFormat

NOWHERE = Context(Path("."), "state")


def decode(ddl: str, *values: bytes | None) -> Decoded:
    return JsonFormat().decoder(NOWHERE, from_ddl(ddl)).decode(pa.array(values, pa.binary()))


def rows(ddl: str, *values: bytes | None) -> list[Any]:
    decoded = decode(ddl, *values)
    assert not decoded.bad
    return decoded.rows.to_pylist()


def reasons(ddl: str, *values: bytes | None) -> list[str | None]:
    found = {one.index: one.reason for one in decode(ddl, *values).bad}
    return [found.get(index) for index in range(len(values))]


def test_every_type() -> None:
    ddl = "b boolean, i int, f float, d decimal(20,2), x binary, day date, at timestamp, m map<string, bigint>,"
    record = b"""{"b": true, "i": -1, "f": 1, "d": "12345678901234567.25", "x": "AAE=", "day": "2024-02-29",
                  "at": "2024-01-01T00:00:00.5+02:00", "m": {"k": 1}, "n": {"7": "2024-01-01"}, "unknown": [{}]}"""
    assert rows(f"{ddl} n map<int, date>", record, b"{}") == [
        {
            "b": True,
            "i": -1,
            "f": 1.0,
            "d": Decimal("12345678901234567.25"),
            "x": b"\0\1",
            "day": date(2024, 2, 29),
            "at": datetime(2023, 12, 31, 22, 0, 0, 500_000, tzinfo=UTC),
            "m": [("k", 1)],
            "n": [(7, date(2024, 1, 1))],
        },
        dict.fromkeys(["b", "i", "f", "d", "x", "day", "at", "m", "n"]),
    ]


def test_keys_need_not_be_names_and_the_last_of_a_repeated_key_counts() -> None:
    ddl = "`@timestamp` timestamp, `a-b` struct<`c d`: int, class: string>, f0 int"
    record = (
        b'{"f0":1,"f0":2,"@timestamp":"2024-01-01T00:00:00","a-b":{"c d":3,"class":"\\ud83d\\ude00\xc3\xa9","z":0}}'
    )
    at = datetime(2024, 1, 1, tzinfo=UTC)
    assert rows(ddl, record) == [{"@timestamp": at, "a-b": {"c d": 3, "class": "😀é"}, "f0": 2}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-01-01T10:00:00Z", datetime(2024, 1, 1, 10, tzinfo=UTC)),
        ("2024-01-01T10:00:00", datetime(2024, 1, 1, 10, tzinfo=UTC)),
        ("2024-01-01 10:00:00.123456", datetime(2024, 1, 1, 10, 0, 0, 123456, tzinfo=UTC)),
        ("2024-01-01T10:00:00.123456789Z", datetime(2024, 1, 1, 10, 0, 0, 123456, tzinfo=UTC)),
        ("2024-01-01t10:00:00z", datetime(2024, 1, 1, 10, tzinfo=UTC)),
        ("2024-01-01T10:00-0130", datetime(2024, 1, 1, 11, 30, tzinfo=UTC)),
        ("2024-01-01", datetime(2024, 1, 1, tzinfo=UTC)),
        ("2024-02-30T00:00:00Z", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_timestamps_in_every_spelling(text: str, expected: datetime | None) -> None:
    plain = b'{"at":"2020-01-01T00:00:00Z","in":{"at":"2020-01-01T00:00:00Z"}}'
    record = json.dumps({"at": text, "in": {"at": text}}).encode()
    decoded = decode("at timestamp, in struct<at: timestamp>", plain, record)
    if expected is None:
        assert [(one.index, one.reason) for one in decoded.bad] == [(1, "wrong-type")]
        assert "column 'at'" in decoded.bad[0].detail
    else:
        assert decoded.rows.to_pylist()[1] == {"at": expected, "in": {"at": expected}}


def test_each_bad_record_has_its_own_reason() -> None:
    deep = b'{"zz":' + b"[" * 100_000
    ddl = "a bigint, s string, d decimal(4,2), b binary, t tinyint, f float, at timestamp, day date"
    cases = {
        b'{"a":1}': None,
        b'{"a":1': "malformed",
        b'{"a":1}x': "malformed",
        b'{"s":"\xff"}': "malformed",
        b"\xff": "malformed",
        b'{"a":NaN}': "malformed",
        deep: "malformed",
        deep + b"]" * 100_000 + b"}": "malformed",
        b"[1]": "wrong-type",
        b"null": "wrong-type",
        b'{"a":9223372036854775808}': "wrong-type",
        b'{"a":1.0}': "wrong-type",
        b'{"a":"1"}': "wrong-type",
        b'{"a":true}': "wrong-type",
        b'{"s":1}': "wrong-type",
        b'{"d":1.234}': "wrong-type",
        b'{"d":"NaN"}': "wrong-type",
        b'{"d":100}': "wrong-type",
        b'{"b":"!"}': "wrong-type",
        b'{"t":128}': "wrong-type",
        b'{"f":1e39}': "wrong-type",
        b'{"at":1704067200}': "wrong-type",
        b'{"day":"2024-02-30"}': "wrong-type",
        b"": "empty",
        None: "empty",
    }
    assert dict(zip(cases, reasons(ddl, *cases), strict=True)) == cases
    assert decode(ddl, *cases).rows.num_rows == 1


def test_one_bad_record_costs_only_itself() -> None:
    values: list[bytes] = [b'{"id":%d,"at":"2024-01-01T00:00:00Z"}' % i for i in range(20_000)]
    for damage in (b"{", b'{"at":"x"}'):
        spoilt = [*values[:777], damage, *values[778:]]
        decoded = decode("id bigint, at timestamp", *spoilt)
        assert [one.index for one in decoded.bad] == [777]
        assert decoded.rows.column("id").to_pylist() == [i for i in range(20_000) if i != 777]


def test_no_columns_still_count_the_rows() -> None:
    decoded = JsonFormat().decoder(NOWHERE, pa.schema([])).decode(pa.array([b"{}", b"{", b'{"a":1}']))
    assert (decoded.rows.num_rows, len(decoded.bad)) == (2, 1)


def test_columns_are_inferred_from_a_sample() -> None:
    sample = [
        b'{"i":1,"d":1,"t":"2024-01-01T00:00:00","s":"2024-01-01","n":null,"o":{"a":[null]},"big":99999999999999999999,"e":{}}',
        b"not json",
        b"[1]",
        b'{"i":null,"d":1.5,"t":"2024-01-01T00:00:00.5Z","s":"x","o":{"a":[{"x":true}],"b":1},"big":1,"m":"2024-01-01T00:00:00Z"}',
        b'{"m":"then"}',
    ]
    ddl = "i bigint, d double, t timestamp, s string, n string, o struct<a: array<struct<x: boolean>>, b: bigint>,"
    expected = from_ddl(f"{ddl} big decimal(38,0), e map<string, string>, m string")
    assert JsonFormat().record_schema(NOWHERE) is None
    assert JsonFormat().infer(sample) == expected
    assert from_ddl(to_ddl(expected)) == expected


@pytest.mark.parametrize(
    ("sample", "code"),
    [
        ([], "nothing-to-infer"),
        ([b"x", b"{}"], "nothing-to-infer"),
        ([b'{"a":{"b":1}}', b'{"a":{"b":"x"}}'], "mixed-types"),
        ([b'{"a":[1]}', b'{"a":{}}'], "mixed-types"),
    ],
)
def test_samples_that_say_too_little_or_too_much(sample: list[bytes], code: str) -> None:
    with pytest.raises(ProjectError) as caught:
        JsonFormat().infer(sample)
    assert caught.value.code == code


SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "required": ["id", "kind", "who", "maybe"],
    "definitions": {
        "who": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        }
    },
    "properties": {
        "id": {"type": "integer"},
        "kind": {"enum": ["a", "b"]},
        "who": {"$ref": "#/definitions/who"},
        "maybe": {"type": ["number", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "day": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "raw": {"type": "string", "contentEncoding": "base64"},
        "on": {"type": "boolean"},
    },
}


@pytest.fixture
def strict(tmp_path: Path) -> tuple[JsonFormat, Context]:
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    return JsonFormat(json_schema="s.json"), Context(tmp_path, "state")


def test_json_schema_gives_the_columns(strict: tuple[JsonFormat, Context]) -> None:
    format, context = strict
    ddl = "id bigint, kind string, who struct<name: string, age: bigint>, maybe double, at timestamp, day date,"
    assert format.record_schema(context) == from_ddl(
        f"{ddl} tags array<string>, counts map<string, bigint>, raw binary, on boolean"
    )


def test_json_schema_is_enforced_even_for_columns_nobody_wants(strict: tuple[JsonFormat, Context]) -> None:
    format, context = strict
    full = format.record_schema(context)
    assert full is not None
    good = {"id": 1, "kind": "a", "who": {"name": "n"}, "maybe": None}
    cases: list[tuple[dict[str, Any], str | None]] = [
        (good, None),
        ({**good, "tags": ["x", "z"]}, "wrong-type"),
        ({**good, "kind": "c"}, "wrong-type"),
        ({**good, "id": None}, "wrong-type"),
        ({**good, "who": {"age": 1}}, "missing-field"),
        ({key: value for key, value in good.items() if key != "maybe"}, "missing-field"),
    ]
    values = pa.array([json.dumps(record).encode() for record, _ in cases], pa.binary())
    decoded = format.decoder(context, full).decode(values)
    assert {one.index: one.reason for one in decoded.bad} == {i: why for i, (_, why) in enumerate(cases) if why}
    narrow = format.decoder(context, pa.schema([full.field("at")])).decode(values)
    assert [(one.index, one.reason) for one in narrow.bad] == [(5, "missing-field")]


@pytest.mark.parametrize(
    ("schema", "code"),
    [
        ("{", "bad-json-schema"),
        ('{"type": 5}', "bad-json-schema"),
        ('{"type": "string"}', "bad-json-schema"),
        ('{"properties": {"a": {}}}', "bad-json-schema"),
        ('{"properties": {"a": {"type": ["string", "integer"]}}}', "bad-json-schema"),
        ('{"properties": {"a": {"$ref": "#/nope"}}}', "bad-json-schema"),
        ('{"properties": {"a": {"$ref": "other.json"}}}', "bad-json-schema"),
        ('{"properties": {"a": {"$ref": "#"}}}', "recursive-schema"),
        (None, "missing-file"),
    ],
)
def test_json_schemas_that_cannot_be_columns(tmp_path: Path, schema: str | None, code: str) -> None:
    if schema is not None:
        (tmp_path / "s.json").write_text(schema)
    with pytest.raises(ProjectError) as caught:
        JsonFormat(json_schema="s.json").record_schema(Context(tmp_path, "state"))
    assert caught.value.code == code


def test_nulls_are_left_out_or_kept() -> None:
    schema = from_ddl("a int, s struct<x: int, y: int>, m map<string, int>, l array<int>")
    batch = pa.RecordBatch.from_pylist([{"s": {"y": 1}, "m": [("k", None)], "l": [None]}], schema)
    omit = JsonFormat().encoder(NOWHERE, schema).encode(batch).to_pylist()
    keep = JsonFormat(nulls="keep").encoder(NOWHERE, schema).encode(batch).to_pylist()
    assert omit == [b'{"s":{"y":1},"m":{"k":null},"l":[null]}']
    assert keep == [b'{"a":null,"s":{"x":null,"y":1},"m":{"k":null},"l":[null]}']


RECORD = from_ddl("i bigint, s string, f double, o struct<a: array<boolean>, b: string>, m map<string, bigint>")
record = st.fixed_dictionaries(
    {},
    optional={
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "s": st.none() | st.text(),
        "f": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "o": st.none() | st.fixed_dictionaries({"a": st.lists(st.booleans()), "b": st.text()}),
        "m": st.dictionaries(st.text(), st.integers(-5, 5), max_size=3),
        "skipped": st.recursive(st.integers() | st.text(), st.lists, max_leaves=3),
    },
)
damage = st.one_of(st.none(), st.tuples(st.floats(0, 1), st.integers(0, 255)), st.floats(0, 1))


def damaged(value: bytes, how: Any) -> bytes:
    if how is None:
        return value
    if isinstance(how, tuple):
        place = int(how[0] * (len(value) - 1))
        return value[:place] + bytes([how[1]]) + value[place + 1 :]
    return value[: int(how * len(value))]


def shaped(found: dict[str, Any]) -> dict[str, Any]:
    made = {name: found.get(name) for name in RECORD.names}
    if isinstance(made["o"], dict):
        made["o"] = {"a": made["o"].get("a"), "b": made["o"].get("b")}
    return made


@settings(max_examples=60, deadline=None)
@given(records=st.lists(st.tuples(record, damage, st.booleans()), max_size=30))
def test_any_batch_is_decoded_as_the_json_library_does(records: list[Any]) -> None:
    values = [damaged(json.dumps(one, ensure_ascii=ascii).encode(), how) for one, how, ascii in records]
    decoded = JsonFormat().decoder(NOWHERE, RECORD).decode(pa.array(values, pa.binary()))
    bad = {one.index for one in decoded.bad}
    assert decoded.rows.num_rows + len(bad) == len(values)
    assert all(index in bad or how is not None for index, (_, how, _) in enumerate(records) if index in bad)
    # skipped values need not be UTF-8
    expected = [
        shaped(json.loads(value.decode(errors="replace"), strict=False))
        for i, value in enumerate(values)
        if i not in bad
    ]
    found = decoded.rows.to_pylist(maps_as_pydicts="strict")
    assert found == expected


TYPED = (
    "at timestamp, local timestamp_ntz, day date, amount decimal(9,2), blob binary, parts array<struct<at: timestamp>>"
)
typed = st.fixed_dictionaries(
    {
        "at": st.none() | st.datetimes(timezones=st.just(UTC)),
        "local": st.none() | st.datetimes(),
        "day": st.none() | st.dates(),
        "amount": st.none() | st.decimals("-9999999", "9999999", places=2),
        "blob": st.none() | st.binary(),
        "parts": st.none() | st.lists(st.fixed_dictionaries({"at": st.none() | st.datetimes(timezones=st.just(UTC))})),
    }
)


@settings(max_examples=60, deadline=None)
@given(records=st.lists(typed, max_size=20))
def test_encoding_any_rows_and_decoding_them_gives_them_back(records: list[Any]) -> None:
    schema = from_ddl(TYPED)
    batch = pa.RecordBatch.from_pylist(records, schema)
    for format in (JsonFormat(), JsonFormat(nulls="keep")):
        values = format.encoder(NOWHERE, schema).encode(batch)
        decoded = format.decoder(NOWHERE, schema).decode(values)
        assert not decoded.bad
        assert decoded.rows == batch
