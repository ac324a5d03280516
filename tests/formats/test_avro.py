from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.context import Context
from headrace.core.encoding.avro import container_schema, read_container
from headrace.core.errors import ProjectError
from headrace.core.schema import from_ddl
from headrace.formats.avro import AvroFormat

UUIDS = {"type": "string", "logicalType": "uuid"}
ITEM = {"type": "record", "name": "Item", "fields": [{"name": "sku", "type": "string"}, {"name": "uid", "type": UUIDS}]}
KIDS = {"type": "array", "items": "Tree"}
TREE = {"type": "record", "name": "Tree", "fields": [{"name": "v", "type": "int"}, {"name": "kids", "type": KIDS}]}
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "n", "type": "int"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "item", "type": ITEM},
        {"name": "items", "type": {"type": "array", "items": "Item"}},
        {"name": "by_key", "type": {"type": "map", "values": ["null", "Item"]}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "millis", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "micros", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "either", "type": ["null", "string", "long"]},
        {"name": "tree", "type": TREE},
        {"name": "kind2", "type": "Kind"},
        {"name": "f", "type": "float"},
    ],
}  # fmt: skip
UID = UUID(int=7)
RECORD = {
    "id": 2**62, "n": -1, "name": "é", "item": {"sku": "s", "uid": UID}, "items": [{"sku": "t", "uid": UID}],
    "by_key": {"k": None, "l": {"sku": "u", "uid": UID}}, "kind": "B", "hash": b"\0\1",
    "millis": datetime(2024, 1, 1, 0, 0, 0, 5000, tzinfo=UTC), "micros": datetime(1960, 1, 1, 0, 0, 0, 7, tzinfo=UTC),
    "local": datetime(2024, 1, 1, 0, 0, 0, 7), "day": date(2024, 2, 29), "amount": Decimal("-12.50"),
    "clock": time(1, 2, 3),
    "either": 5, "tree": {"v": 1, "kids": [{"v": 2, "kids": []}]}, "kind2": "A", "f": 0.5,
}  # fmt: skip


def avro(record: Any, schema: Any = SCHEMA) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    return out.getvalue()


@pytest.fixture
def context(tmp_path: Path) -> Context:
    (tmp_path / "order.avsc").write_text(json.dumps(SCHEMA))
    return Context(tmp_path, "state")


@pytest.fixture
def written(context: Context) -> Callable[[Any], AvroFormat]:
    def write(schema: Any) -> AvroFormat:
        Path(context.path("own.avsc")).write_text(json.dumps(schema))
        return AvroFormat(schema_file="own.avsc")

    return write


ORDER = AvroFormat(schema_file="order.avsc")
EXPECTED = {
    **RECORD,
    "item": {"sku": "s", "uid": str(UID)}, "items": [{"sku": "t", "uid": str(UID)}],
    "by_key": [("k", None), ("l", {"sku": "u", "uid": str(UID)})], "clock": "01:02:03", "either": "5",
    "tree": '{"v":1,"kids":[{"v":2,"kids":[]}]}',
}  # fmt: skip


def test_every_type(context: Context) -> None:
    schema = ORDER.record_schema(context)
    decoded = ORDER.decoder(context, schema).decode(pa.array([avro(RECORD)]))
    assert not decoded.bad
    assert decoded.rows.to_pylist() == [EXPECTED]


@pytest.mark.parametrize("wanted", [["kind2", "items"], ["f"], ["by_key", "tree"], []])
def test_only_wanted_fields(context: Context, wanted: list[str]) -> None:
    full = ORDER.record_schema(context)
    schema = pa.schema([full.field(name) for name in wanted])
    decoded = ORDER.decoder(context, schema).decode(pa.array([avro(RECORD), b"\xff"]))
    assert decoded.rows.num_rows == 1
    assert decoded.rows.to_pylist() == [{name: EXPECTED[name] for name in wanted}]
    assert [(one.index, one.reason) for one in decoded.bad] == [(1, "malformed")]


def test_bad_records(context: Context) -> None:
    schema = from_ddl("id bigint, amount decimal(8,2)")
    whole = avro(RECORD)
    values = [whole, None, b"", whole[:-3], whole + b"x", b"\xff" * 30, whole]
    decoded = ORDER.decoder(context, schema).decode(pa.array(values, pa.binary()))
    reasons = {one.index: one.reason for one in decoded.bad}
    assert reasons == {1: "empty", 2: "malformed", 3: "malformed", 4: "malformed", 5: "malformed"}
    assert decoded.rows.num_rows == 2


def test_one_bad_record_costs_only_itself(written: Callable[[Any], AvroFormat], context: Context) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "i", "type": "long"}, {"name": "s", "type": "string"}]}
    values = [avro({"i": i, "s": "x"}, schema) for i in range(20_000)]
    values[19_999] = b"\x02"
    format = written(schema)
    decoded = format.decoder(context, format.record_schema(context)).decode(pa.array(values))
    assert [one.index for one in decoded.bad] == [19_999]
    assert decoded.rows.column("i").to_pylist() == list(range(19_999))


ROW = (
    "i bigint, t tinyint, s string, at timestamp, local timestamp_ntz, day date, d decimal(9,3), b binary, x float, "
    "l array<struct<m: map<string, int>>>"
)
counts = st.none() | st.dictionaries(st.text(), st.none() | st.integers(-9, 9))
values = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "t": st.none() | st.integers(-128, 127),
        "s": st.none() | st.text(),
        "at": st.none() | st.datetimes(timezones=st.just(UTC)),
        "local": st.none() | st.datetimes(),
        "day": st.none() | st.dates(),
        "d": st.none() | st.decimals(-999999, 999999, places=3),
        "b": st.none() | st.binary(),
        "x": st.none() | st.floats(width=32, allow_nan=False),
        "l": st.none() | st.lists(st.none() | st.fixed_dictionaries({"m": counts})),
    }
)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(records=st.lists(values, max_size=10))
def test_rows_without_a_schema_file_are_read_back_with_the_derived_one(
    tmp_path_factory: Any, records: list[Any]
) -> None:
    from headrace.formats.avro.encoder import derived_schema

    context = Context(tmp_path_factory.getbasetemp(), "state")
    schema = from_ddl(ROW)
    batch = pa.RecordBatch.from_pylist(records, schema)
    encoded = AvroFormat().encoder(context, schema).encode(batch)
    derived = derived_schema(schema)
    independent = [fastavro.schemaless_reader(io.BytesIO(value), derived, None) for value in encoded.to_pylist()]
    assert independent == records
    (context.root / "derived.avsc").write_text(json.dumps(derived))
    format = AvroFormat(schema_file="derived.avsc")
    wide = format.record_schema(context)
    decoded = format.decoder(context, wide).decode(encoded)
    assert not decoded.bad
    assert decoded.rows.to_pylist() == batch.to_pylist()


@settings(max_examples=60, deadline=None)
@given(damage=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=20))
def test_any_damaged_batch_is_decoded_as_fastavro_does(tmp_path_factory: Any, damage: list[Any]) -> None:
    context = Context(tmp_path_factory.getbasetemp(), "state")
    schema = {"type": "record", "name": "R", "fields": [{"name": "i", "type": "long"}, {"name": "s", "type": "string"}]}
    (context.root / "damage.avsc").write_text(json.dumps(schema))
    format = AvroFormat(schema_file="damage.avsc")
    whole = avro({"i": 12345, "s": "héllo"}, schema)
    places = [(int(at * (len(whole) - 1)), byte) for at, byte in damage]
    batch = [whole, *(whole[:at] + bytes([byte]) + whole[at + 1 :] for at, byte in places)]
    decoded = format.decoder(context, format.record_schema(context)).decode(pa.array(batch, pa.binary()))
    assert decoded.rows.num_rows + len(decoded.bad) == len(batch)
    out = {one.index for one in decoded.bad}
    expected = [fastavro.schemaless_reader(io.BytesIO(v), schema, None) for i, v in enumerate(batch) if i not in out]  # type: ignore[call-arg]
    assert decoded.rows.to_pylist() == expected


@pytest.mark.parametrize(
    ("ddl", "code"),
    [
        ("idd bigint", "unknown-column"),
        ("id bigint", "missing-column"),
        ("id string", "wrong-column-type"),
        ("item struct<skew: string>", "unknown-column"),
        ("either string", "missing-column"),
    ],
)
def test_columns_the_schema_cannot_take(context: Context, ddl: str, code: str) -> None:
    with pytest.raises(ProjectError) as caught:
        ORDER.encoder(context, from_ddl(ddl))
    assert caught.value.code == code


def test_a_schema_file_decides_how_rows_are_written(written: Callable[[Any], AvroFormat], context: Context) -> None:
    kind = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
    fields = [
        {"name": "e", "type": kind},
        {"name": "n", "type": "long", "default": 7},
        {"name": "o", "type": ["null", "int"]},
    ]
    schema = {"type": "record", "name": "R", "fields": fields}
    format = written(schema)
    rows = pa.RecordBatch.from_pylist([{"e": "B"}], from_ddl("e string"))
    value = format.encoder(context, rows.schema).encode(rows)[0].as_py()
    read = fastavro.schemaless_reader(io.BytesIO(value), fastavro.parse_schema(schema), None)  # type: ignore[call-arg]
    assert read == {"e": "B", "n": 7, "o": None}
    with pytest.raises(ValueError, match="Avro"):
        format.encoder(context, rows.schema).encode(pa.RecordBatch.from_pylist([{"e": "C"}], rows.schema))


def test_unions_cannot_be_written(written: Callable[[Any], AvroFormat], context: Context) -> None:
    format = written({"type": "record", "name": "R", "fields": [{"name": "u", "type": ["string", "long"]}]})
    with pytest.raises(ProjectError) as caught:
        format.encoder(context, from_ddl("u string"))
    assert caught.value.code == "wrong-column-type"


@pytest.mark.parametrize(
    ("format", "content", "code"),
    [
        (AvroFormat(), None, "missing-schema"),
        (AvroFormat(schema_file="x.avsc"), None, "missing-file"),
        (AvroFormat(schema_file="x.avsc"), "{", "bad-avro-schema"),
        (AvroFormat(schema_file="x.avsc"), '{"type": "nope"}', "bad-avro-schema"),
        (AvroFormat(schema_file="x.avsc"), '"string"', "bad-avro-schema"),
    ],
)
def test_schemas_that_are_none(context: Context, format: AvroFormat, content: str | None, code: str) -> None:
    if content is not None:
        Path(context.path("x.avsc")).write_text(content)
    with pytest.raises(ProjectError) as caught:
        format.record_schema(context)
    assert caught.value.code == code


def test_names_that_avro_does_not_allow_are_refused(context: Context) -> None:
    with pytest.raises(ProjectError, match="a-b") as caught:
        AvroFormat().encoder(context, from_ddl("`a-b` int"))
    assert caught.value.code == "bad-avro-name"


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_container_files_are_read_in_batches(codec: str) -> None:
    file = io.BytesIO()
    fastavro.writer(file, fastavro.parse_schema(SCHEMA), [{**RECORD, "n": i} for i in range(25)], codec=codec)
    file.seek(0)
    full = container_schema(file)
    assert (full.field("n").type, full.field("tree").type) == (pa.int32(), pa.string())
    file.seek(0)
    batches = list(read_container(file, ["by_key", "n"], batch_rows=10))
    assert [batch.num_rows for batch in batches] == [10, 10, 5]
    assert batches[2].to_pylist()[4] == {"by_key": EXPECTED["by_key"], "n": 24}
    file.seek(0)
    assert next(read_container(file)).to_pylist()[0] == {**EXPECTED, "n": 0}


def test_a_file_that_is_no_container_is_named() -> None:
    with pytest.raises(ProjectError) as caught:
        container_schema(io.BytesIO(b"hello"))
    assert caught.value.code == "bad-avro-file"
