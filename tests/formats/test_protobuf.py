from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.schema import TIMESTAMP, from_ddl, to_ddl
from headrace.formats.protobuf import ProtobufFormat

Message = Callable[[str], type[Any]]
ORDER = ProtobufFormat(descriptors="shop.desc", message="shop.Order")


def binary(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


def decode(project: Context, *values: bytes | None, format: ProtobufFormat = ORDER, columns: str = "") -> Any:
    full = format.record_schema(project)
    schema = pa.schema([full.field(name) for name in columns.split()]) if columns else full
    return format.decoder(project, schema).decode(binary(*values))


@pytest.fixture
def order(message: Message) -> Any:
    made = message("shop.Order")(
        id=-5, customer="é", amount=1.5, status=1, big=2**64 - 1, blob=b"\0", paid=True, rank=0
    )
    made.at.FromDatetime(datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC))
    made.items.add(sku="a", count=2**32 - 1, status=2)
    made.items.add().at.seconds = -1
    made.by_sku["k"].count = 7
    made.cash = 0
    made.took.seconds, made.took.nanos = 1, 5000
    made.note.value = ""
    made.limit.value = 2**63
    made.extra["x"] = [1, None, {"y": "z"}]
    made.any.string_value = "q"
    made.first.SetInParent()
    made.history.extend([0, 2])
    made.totals[3] = 2**64 - 1
    made.tree.children.add(name="leaf").by_name["n"].name = "deep"
    made.empty.SetInParent()
    made.anys.add().number_value = 2
    made.named["v"].bool_value = True
    made.small, made.signed, made.none = 2**32 - 1, -3, False
    return made


def test_every_type_becomes_its_column(project: Context, order: Any) -> None:
    row = decode(project, order.SerializeToString()).rows.to_pylist()[0]
    assert row["at"] == datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC)
    assert row["items"][0] == {"sku": "a", "count": 2**32 - 1, "status": "SENT", "at": None}
    assert row["items"][1]["at"] == datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert row["by_sku"] == [("k", {"sku": "", "count": 7, "status": "UNKNOWN", "at": None})]
    assert (row["id"], row["customer"], row["status"], row["blob"], row["paid"]) == (-5, "é", "PAID", b"\0", True)
    assert (row["big"], row["limit"], row["totals"]) == (Decimal(2**64 - 1), Decimal(2**63), [(3, Decimal(2**64 - 1))])
    assert (row["rank"], row["card"], row["cash"], row["note"], row["took"]) == (0, None, 0, "", 1_000_005)
    assert (row["extra"], row["any"], row["empty"]) == ('{"x": [1.0, null, {"y": "z"}]}', '"q"', "{}")
    assert (row["anys"], row["named"], row["much"], row["none"]) == (["2.0"], [("v", "true")], None, False)
    assert row["tree"] == '{"children": [{"name": "leaf", "by_name": {"n": {"name": "deep"}}}]}'
    assert row["first"] == {"sku": "", "count": 0, "status": "UNKNOWN", "at": None}
    assert (row["history"], row["small"], row["signed"]) == (["UNKNOWN", "SENT"], 2**32 - 1, -3)


def test_an_empty_value_is_a_message_of_defaults_and_absent_parts_are_null(project: Context) -> None:
    decoded = decode(project, b"")
    row = decoded.rows.to_pylist()[0]
    scalars = [row[name] for name in ("id", "customer", "amount", "status", "big", "blob", "paid", "items", "by_sku")]
    assert scalars == [0, "", 0.0, "UNKNOWN", Decimal(0), b"", False, [], []]
    absent = (
        "at",
        "rank",
        "card",
        "cash",
        "took",
        "note",
        "limit",
        "extra",
        "any",
        "first",
        "tree",
        "empty",
        "much",
        "none",
    )
    assert {row[name] for name in absent} == {None}
    assert not decoded.bad


def test_what_is_encoded_is_decoded_again(project: Context, order: Any) -> None:
    schema = ORDER.record_schema(project)
    rows = decode(project, order.SerializeToString(), b"").rows
    values = ORDER.encoder(project, schema).encode(rows)
    assert type(order).FromString(values[0].as_py()) == order
    assert values[1].as_py() == b""
    assert ORDER.decoder(project, schema).decode(values).rows == rows


def test_schema_survives_ddl(project: Context) -> None:
    schema = ORDER.record_schema(project)
    assert from_ddl(to_ddl(schema)) == schema
    assert schema.field("at").type == TIMESTAMP


def test_numbers_without_an_enum_name_are_their_decimal_text_and_come_back(project: Context, message: Message) -> None:
    value = message("shop.Order")(status=7, history=[9, 1]).SerializeToString()
    rows = decode(project, value, columns="status history").rows
    assert rows.to_pylist() == [{"status": "7", "history": ["9", "PAID"]}]
    assert ORDER.encoder(project, rows.schema).encode(rows).to_pylist() == [value]


def test_only_wanted_fields_are_decoded(project: Context, order: Any) -> None:
    decoded = decode(project, order.SerializeToString(), columns="cash rank extra id")
    assert decoded.rows.schema.names == ["cash", "rank", "extra", "id"]
    assert decoded.rows.to_pylist()[0]["id"] == -5
    broken_text_elsewhere = b"\x12\x01\xff\x08\x01"
    assert decode(project, broken_text_elsewhere, columns="id").rows.to_pylist() == [{"id": 1}]
    assert decode(project, broken_text_elsewhere, columns="customer").bad[0].reason == "malformed"


def test_no_columns_still_count_the_rows(project: Context) -> None:
    decoded = ORDER.decoder(project, pa.schema([])).decode(binary(b"", b"\xff", b"\x08\x01"))
    assert (decoded.rows.num_rows, [one.index for one in decoded.bad]) == (2, [1])


def test_part_of_a_nested_message_may_be_asked_for(project: Context, order: Any) -> None:
    schema = from_ddl("items array<struct<status: string, sku: string>>")
    rows = ORDER.decoder(project, schema).decode(binary(order.SerializeToString())).rows
    assert rows.to_pylist()[0]["items"][0] == {"status": "SENT", "sku": "a"}


def test_one_bad_record_costs_only_itself(project: Context, message: Message) -> None:
    values: list[bytes | None] = [message("shop.Order")(id=i).SerializeToString() for i in range(20_000)]
    values[12_345] = b"\xff\xff"
    decoded = decode(project, *values, columns="id")
    assert [(one.index, one.reason) for one in decoded.bad] == [(12_345, "malformed")]
    assert decoded.rows.column("id").to_pylist() == [i for i in range(20_000) if i != 12_345]


def test_lengths_that_overflow_are_bad_records_and_no_crash(project: Context) -> None:
    overflowing = b"\x62" + b"\xff" * 9 + b"\x01"
    hopeless = [b"\x12" + b"\xfb" + b"\xff" * 8 + b"\x01abc", overflowing, b"\x0a" + b"\xff" * 9 + b"\x01"]
    decoded = decode(project, b"\x08\x01", *hopeless, b"\x08\x02")
    assert [one.index for one in decoded.bad] == [1, 2, 3]
    assert decoded.rows.column("id").to_pylist() == [1, 2]


def test_strict_finds_what_the_fast_decoder_overlooks(project: Context) -> None:
    group_without_end = b"\x0b\xfc\x01"
    assert not decode(project, group_without_end).bad
    strict = decode(project, b"", group_without_end, format=ORDER.model_copy(update={"strict": True}))
    assert [(one.index, one.reason) for one in strict.bad] == [(1, "malformed")]


def test_null_is_bad_and_an_impossible_timestamp_is_bad(project: Context, message: Message) -> None:
    far = message("shop.Order")()
    far.at.seconds = 2**60
    nested = message("shop.Order")()
    nested.items.add().at.seconds = -(2**60)
    decoded = decode(project, b"", None, far.SerializeToString(), nested.SerializeToString(), b"\x08\x01")
    assert [(one.index, one.reason) for one in decoded.bad] == [(1, "empty"), (2, "out-of-range"), (3, "out-of-range")]
    assert decoded.rows.column("id").to_pylist() == [0, 1]


def test_proto2_fields_are_null_when_absent_and_groups_are_left_out(project: Context, message: Message) -> None:
    format = ProtobufFormat(proto="old.proto", message="old.Thing")
    assert format.record_schema(project).names == ["a", "s", "r", "kind", "extra"]
    made = message("old.Thing")(kind=2, r=1)
    made.extra["k"] = "v"
    rows = decode(project, b"", made.SerializeToString(), format=format).rows.to_pylist()
    assert rows[0] == dict.fromkeys(["a", "s", "r", "kind", "extra"])
    assert rows[1] == {"a": None, "s": None, "r": 1, "kind": "TWO", "extra": '{"k": "v"}'}


def test_a_message_that_contains_itself_keeps_its_own_columns(project: Context, message: Message) -> None:
    format = ProtobufFormat(descriptors="shop.desc", message="shop.Tree")
    tree = message("shop.Tree")(name="root")
    tree.children.add(name="leaf")
    tree.by_name["n"].name = "m"
    decoded = decode(project, tree.SerializeToString(), format=format)
    assert decoded.rows.to_pylist() == [
        {"name": "root", "children": ['{"name": "leaf"}'], "by_name": [("n", '{"name": "m"}')]}
    ]
    back = format.encoder(project, decoded.rows.schema).encode(decoded.rows)
    assert type(tree).FromString(back[0].as_py()) == tree


@pytest.mark.parametrize(
    ("options", "code", "hint"),
    [
        ({"descriptors": "shop.desc", "message": "shop.Ordr"}, "unknown-message", "shop.Order"),
        ({"descriptors": "none.desc", "message": "shop.Order"}, "missing-file", "project"),
        ({"proto": "none.proto", "message": "shop.Order"}, "missing-file", "project"),
        ({"descriptors": "shop.proto", "message": "shop.Order"}, "bad-descriptors", "include_imports"),
        ({"proto": "broken.proto", "message": "shop.Order"}, "bad-proto", "proto_path"),
        ({"proto": "binary.proto", "message": "shop.Order"}, "bad-proto", "fix the named line"),
    ],
)
def test_what_is_wrong_with_the_schema_is_said(project: Context, options: dict[str, str], code: str, hint: str) -> None:
    Path(project.path("broken.proto")).write_text('syntax = "proto3"; message X { Nope n = 1; }')
    Path(project.path("binary.proto")).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProjectError) as caught:
        ProtobufFormat(**options).record_schema(project)  # type: ignore[arg-type]
    assert caught.value.code == code
    assert hint in str(caught.value.hint)
    assert "log messages" not in caught.value.message


def test_descriptors_or_proto_not_both() -> None:
    with pytest.raises(ValueError, match="either"):
        ProtobufFormat(message="a.B")


def test_asking_for_a_field_that_is_not_there_names_the_nearest(project: Context) -> None:
    with pytest.raises(ProjectError, match="custumer") as caught:
        ORDER.decoder(project, from_ddl("custumer string"))
    assert (caught.value.code, "'customer'" in str(caught.value.hint)) == ("unknown-column", True)


@pytest.mark.parametrize(
    ("ddl", "code"),
    [
        ("ammount double", "unknown-column"),
        ("id string", "wrong-column-type"),
        ("items struct<sku: string>", "wrong-column-type"),
        ("items array<struct<skew: string>>", "unknown-column"),
        ("first struct<sku: int>", "wrong-column-type"),
        ("by_sku map<int, struct<sku: string>>", "wrong-column-type"),
        ("at bigint", "wrong-column-type"),
        ("status int", "wrong-column-type"),
        ("paid int", "wrong-column-type"),
    ],
)
def test_columns_without_a_place_are_refused_at_once(project: Context, ddl: str, code: str) -> None:
    with pytest.raises(ProjectError) as caught:
        ORDER.encoder(project, from_ddl(ddl))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("ddl", "value", "says"),
    [
        ("status string", "PAYED", "'PAYED' is not in the enum shop.Status"),
        ("small bigint", -1, "column 'small'"),
        ("big decimal(20,0)", Decimal(2**64), "column 'big'"),
        ("rank bigint", 2**31, "column 'rank'"),
        ("any string", "{", "not the JSON"),
        ("history array<string>", ["PAID", None], "null among"),
    ],
)
def test_values_without_a_place_are_a_value_error(project: Context, ddl: str, value: Any, says: str) -> None:
    schema = from_ddl(ddl)
    rows = pa.RecordBatch.from_pylist([{schema.names[0]: value}], schema)
    with pytest.raises(ValueError, match=says):
        ORDER.encoder(project, schema).encode(rows)


def test_some_columns_and_nulls_and_other_widths_are_encoded(project: Context, message: Message) -> None:
    schema = from_ddl(
        "first struct<count: int>, id int, amount decimal(4,1), at timestamp_ntz, card string, limit bigint"
    )
    at = datetime(2024, 1, 1)
    row = {"first": {"count": 3}, "id": 1, "amount": Decimal("2.5"), "at": at, "card": None, "limit": 9}
    rows = pa.RecordBatch.from_pylist([{"first": {"count": 1}}, row, {}], schema).slice(1)
    values = ORDER.encoder(project, schema).encode(rows).to_pylist()
    made = json_format.MessageToDict(message("shop.Order").FromString(values[0]))
    assert made == {"first": {"count": 3}, "id": "1", "amount": 2.5, "at": "2024-01-01T00:00:00Z", "limit": "9"}
    assert values[1] == b""


good = st.builds(
    dict,
    id=st.integers(-(2**63), 2**63 - 1),
    customer=st.text(),
    amount=st.floats(allow_nan=False),
    status=st.integers(0, 2),
    big=st.integers(0, 2**64 - 1),
    blob=st.binary(max_size=8),
    history=st.lists(st.integers(0, 2), max_size=3),
    totals=st.dictionaries(st.integers(-5, 5), st.integers(0, 2**64 - 1), max_size=3),
)
damage = st.one_of(st.none(), st.tuples(st.floats(0, 1), st.integers(0, 255)), st.floats(0, 1))


def damaged(value: bytes, how: Any) -> bytes:
    if how is None or not value:
        return value
    if isinstance(how, tuple):
        place = int(how[0] * (len(value) - 1))
        return value[:place] + bytes([how[1]]) + value[place + 1 :]
    return value[: int(how * len(value))]


@settings(max_examples=60, deadline=None)
@given(records=st.lists(st.tuples(good, damage), max_size=30), strict=st.booleans())
def test_any_batch_is_decoded_as_the_protobuf_library_does(
    project: Context, message: Message, records: list[Any], strict: bool
) -> None:
    make = message("shop.Order")
    values = [damaged(make(**fields).SerializeToString(), how) for fields, how in records]
    decoded = decode(project, *values, format=ORDER.model_copy(update={"strict": strict}))
    assert decoded.rows.num_rows + len(decoded.bad) == len(values)
    bad = {one.index for one in decoded.bad}
    parsed = [parse(make, value) for value in values]
    if strict:
        assert bad >= {index for index, one in enumerate(parsed) if one is None}
    assert all(records[index][1] is not None for index in bad)
    kept = [one for index, one in enumerate(parsed) if index not in bad]
    good_rows = pa.array([one is not None for one in kept], pa.bool_())
    expected = [one for one in kept if one is not None]
    rows = decoded.rows.filter(good_rows).select(["id", "customer", "big", "blob", "history"]).to_pylist()
    assert rows == [
        {"id": m.id, "customer": m.customer, "big": Decimal(m.big), "blob": m.blob, "history": names(m)}
        for m in expected
    ]


def parse(make: Any, value: bytes) -> Any:
    try:
        return make.FromString(value)
    except DecodeError:
        return None


def names(order: Any) -> list[str]:
    known = order.DESCRIPTOR.fields_by_name["history"].enum_type.values_by_number
    return [known[number].name if number in known else str(number) for number in order.history]


@settings(max_examples=40, deadline=None)
@given(records=st.lists(good, max_size=20))
def test_encoding_any_rows_and_decoding_them_gives_them_back(
    project: Context, message: Message, records: list[Any]
) -> None:
    values = [message("shop.Order")(**fields).SerializeToString() for fields in records]
    rows = decode(project, *values).rows
    again = ORDER.encoder(project, rows.schema).encode(rows)
    assert ORDER.decoder(project, rows.schema).decode(again).rows == rows
