"""Debezium topics as tables: envelopes taken apart, and followed in a real Kafka."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewPartitions
from pydantic import ValidationError
from tests.tables.applied import Applied
from tests.tables.envelopes import avro_envelope, bare, field, framed, payload, registry, wrapped, wrapped_key

import headrace.tables.debezium.reader as debezium_reader
from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError
from headrace.core.schema import TIMESTAMP, from_ddl
from headrace.core.tables import UNCHANGED, RowChange, TableShape
from headrace.systems.schema_registry import Schemas
from headrace.tables.debezium import DebeziumTable
from headrace.tables.debezium.connect import columns_of
from headrace.tables.debezium.messages import AvroMessages, BadMessageError, JsonMessages, MessageParser
from headrace.tables.debezium.rows import NoChange, TableRows
from headrace.testing.services import Kafka
from headrace.testing.services.daemon import await_true

ID = field("id", "int64")
NAME = field("name", "string")
SHAPE = TableShape(from_ddl("id bigint, name string"), ("id",))


def unscaled(number: int, width: int = 4) -> str:
    return base64.b64encode(number.to_bytes(width, "big", signed=True)).decode()


def rows_of(
    shape: TableShape = SHAPE, messages: MessageParser | None = None, *, declared: bool = True, **options: Any
) -> TableRows:
    how = {"timestamps": "micros", "decimals": "base64", "unavailable": "__debezium_unavailable_value", **options}
    return TableRows("orders", shape, messages or JsonMessages(), declared=declared, **how)


def change(rows: TableRows, value: bytes | None, key: bytes | None = None) -> RowChange | NoChange:
    return rows.change(rows.event(value), key)


# name: (the field, what JSON has, the column's type, the value)
TYPES: dict[str, tuple[dict[str, Any], Any, pa.DataType, Any]] = {
    "int16": (field("v", "int16"), 7, pa.int16(), 7),
    "boolean": (field("v", "boolean"), True, pa.bool_(), True),
    "double": (field("v", "double"), 0.1, pa.float64(), 0.1),
    "not a number": (field("v", "double"), "NaN", pa.float64(), pytest.approx(float("nan"), nan_ok=True)),
    "bytes": (field("v", "bytes"), "AP8=", pa.binary(), b"\x00\xff"),
    "date": (field("v", "int32", "io.debezium.time.Date"), 20_000, pa.date32(), date(2024, 10, 4)),
    "connect date": (field("v", "int32", "org.apache.kafka.connect.data.Date"), -1, pa.date32(), date(1969, 12, 31)),
    "iso date": (field("v", "string", "io.debezium.time.IsoDate"), "2024-10-04Z", pa.date32(), date(2024, 10, 4)),
    "time": (field("v", "int32", "io.debezium.time.Time"), 3_661_500, pa.string(), "01:01:01.500000"),
    "micro time": (field("v", "int64", "io.debezium.time.MicroTime"), 3_661_000_000, pa.string(), "01:01:01"),
    "nano time": (field("v", "int64", "io.debezium.time.NanoTime"), 1_500, pa.string(), "00:00:00.000001"),
    "long time": (field("v", "int64", "io.debezium.time.MicroTime"), -363_600_000_000, pa.string(), "-101:00:00"),
    "zoned time": (field("v", "string", "io.debezium.time.ZonedTime"), "10:00:00Z", pa.string(), "10:00:00Z"),
    "timestamp": (
        field("v", "int64", "io.debezium.time.Timestamp"),
        1_700_000_000_123,
        pa.timestamp("us"),
        datetime(2023, 11, 14, 22, 13, 20, 123_000),
    ),
    "connect timestamp": (
        field("v", "int64", "org.apache.kafka.connect.data.Timestamp"),
        -1,
        pa.timestamp("us"),
        datetime(1969, 12, 31, 23, 59, 59, 999_000),
    ),
    "micro timestamp": (
        field("v", "int64", "io.debezium.time.MicroTimestamp"),
        1_700_000_000_123_456,
        pa.timestamp("us"),
        datetime(2023, 11, 14, 22, 13, 20, 123_456),
    ),
    "nano timestamp": (
        field("v", "int64", "io.debezium.time.NanoTimestamp"),
        1_700_000_000_123_456_789,
        pa.timestamp("us"),
        datetime(2023, 11, 14, 22, 13, 20, 123_456),
    ),
    "zoned timestamp": (
        field("v", "string", "io.debezium.time.ZonedTimestamp"),
        "2023-11-14T23:13:20.123456+01:00",
        TIMESTAMP,
        datetime(2023, 11, 14, 22, 13, 20, 123_456, UTC),
    ),
    "decimal": (
        field(
            "v",
            "bytes",
            "org.apache.kafka.connect.data.Decimal",
            parameters={"scale": "2", "connect.decimal.precision": "10"},
        ),
        unscaled(-123_456),
        pa.decimal128(10, 2),
        Decimal("-1234.56"),
    ),
    "decimal of many digits": (
        field(
            "v",
            "bytes",
            "org.apache.kafka.connect.data.Decimal",
            parameters={"scale": "3", "connect.decimal.precision": "65"},
        ),
        unscaled(10**60 + 1, 32),
        pa.string(),
        f"{10**57}.001",
    ),
    "decimal as a number": (
        field("v", "bytes", "org.apache.kafka.connect.data.Decimal", parameters={"scale": "2"}),
        12.34,
        pa.decimal128(38, 2),
        Decimal("12.34"),
    ),
    "decimal of any scale": (
        field(
            "v",
            "struct",
            "io.debezium.data.VariableScaleDecimal",
            fields=[field("scale", "int32"), field("value", "bytes")],
        ),
        {"scale": 3, "value": unscaled(12_345)},
        pa.decimal128(38, 18),
        Decimal("12.345"),
    ),
    "json": (field("v", "string", "io.debezium.data.Json"), '{"a": 1}', pa.string(), '{"a": 1}'),
    "uuid": (field("v", "string", "io.debezium.data.Uuid"), "6f1c…", pa.string(), "6f1c…"),
    "year": (field("v", "int32", "io.debezium.time.Year"), 2024, pa.int32(), 2024),
    "point": (
        field("v", "struct", "io.debezium.data.geometry.Point", fields=[field("x", "double"), field("y", "double")]),
        {"x": 1.5, "y": -2, "wkb": "AQ==", "srid": None},
        pa.struct([("x", pa.float64()), ("y", pa.float64())]),
        {"x": 1.5, "y": -2.0},
    ),
    "array": (field("v", "array", items={"type": "int32"}), [1, None], pa.list_(pa.int32()), [1, None]),
    "map": (
        field("v", "map", keys={"type": "string"}, values={"type": "int32"}),
        {"a": 1},
        pa.map_(pa.string(), pa.int32()),
        [("a", 1)],
    ),
    "map by numbers": (
        field("v", "map", keys={"type": "int32"}, values={"type": "string"}),
        [[1, "a"]],
        pa.map_(pa.int32(), pa.string()),
        [(1, "a")],
    ),
    "struct": (
        field("v", "struct", fields=[field("at", "int32", "io.debezium.time.Date")]),
        {"at": 1},
        pa.struct([("at", pa.date32())]),
        {"at": date(1970, 1, 2)},
    ),
}


@pytest.mark.parametrize("name", TYPES)
def test_values_are_what_the_schema_says(name: str) -> None:
    of, raw, kind, value = TYPES[name]
    columns = columns_of({"fields": [ID, of]})
    assert columns.field("v").type == kind
    rows = rows_of(TableShape(columns, ("id",)))
    made = change(rows, wrapped([ID, of], payload("c", None, {"id": 1, "v": raw})))
    assert made == RowChange("orders", [1, value])
    assert change(rows, wrapped([ID, of], payload("c", None, {"id": 1, "v": None}))) == RowChange("orders", [1, None])
    pa.array([made.row[1]], kind)  # type: ignore[union-attr,index]


@pytest.mark.parametrize(
    ("ddl", "raw", "options", "value"),
    [
        ("v date", 20_000, {}, date(2024, 10, 4)),
        ("v date", "2024-10-04", {}, date(2024, 10, 4)),
        ("v timestamp", 1_700_000_000_000_000, {}, datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        ("v timestamp_ntz", 1_700_000_000_000, {"timestamps": "millis"}, datetime(2023, 11, 14, 22, 13, 20)),
        ("v timestamp", "2023-11-14T22:13:20Z", {}, datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        ("v decimal(10,2)", unscaled(1234), {}, Decimal("12.34")),
        ("v decimal(10,2)", "1234", {"decimals": "text"}, Decimal("1234.00")),
        ("v decimal(38,20)", {"scale": 1, "value": unscaled(5)}, {}, Decimal("0.5").quantize(Decimal(10) ** -20)),
        ("v array<date>", [0, None], {}, [date(1970, 1, 1), None]),
        ("v struct<x: double, y: double>", {"x": 1, "y": 2, "srid": 3}, {}, {"x": 1.0, "y": 2.0}),
    ],
)
def test_without_a_schema_the_declared_type_says_what_a_value_is(
    ddl: str, raw: Any, options: dict[str, str], value: Any
) -> None:
    rows = rows_of(TableShape(from_ddl(f"id bigint, {ddl}"), ("id",)), **options)
    assert change(rows, bare(payload("c", None, {"id": 1, "v": raw}))) == RowChange("orders", [1, value])


def test_each_operation_leaves_behind_what_it_says() -> None:
    rows = rows_of()
    one, two = {"id": 1, "name": "a"}, {"id": 2, "name": "b"}
    assert change(rows, bare(payload("r", None, one))) == RowChange("orders", [1, "a"])
    assert change(rows, bare(payload("u", one, {**one, "name": "c"}))) == RowChange("orders", [1, "c"])
    assert change(rows, bare(payload("u", one, two))) == RowChange("orders", [2, "b"], before=(1,))
    assert change(rows, bare(payload("d", {"id": 1, "name": None}, None))) == RowChange("orders", None, before=(1,))
    assert change(rows, bare(payload("d", None, None)), bare({"id": 3})) == RowChange("orders", None, before=(3,))
    assert change(rows, None, bare({"id": 3})) == RowChange("orders", None, before=(3,))
    assert change(rows, b"null", wrapped_key([ID], {"id": 3})) == RowChange("orders", None, before=(3,))
    assert change(rows, None, b"3") == RowChange("orders", None, before=(3,))
    assert change(rows, None, bare({"other": 3})) is NoChange.NOTHING
    assert change(rows, bare(payload("t", None, None))) is NoChange.TRUNCATED
    assert change(rows, bare({"op": "m", "message": {}})) is NoChange.NOTHING
    assert rows.event(bare(payload("c", None, one))).at == 1_700_000_000_000  # type: ignore[union-attr]


@pytest.mark.parametrize("wrap", [bare, lambda said: wrapped([ID, NAME], said)], ids=["bare", "wrapped"])
def test_a_value_that_the_connector_does_not_have_is_what_it_was(wrap: Callable[[Any], bytes]) -> None:
    rows = rows_of()
    after = {"id": 1, "name": "__debezium_unavailable_value"}
    assert change(rows, wrap(payload("u", None, after))) == RowChange("orders", [1, UNCHANGED])


@pytest.mark.parametrize(
    ("of", "raw"),
    [
        (field("v", "bytes"), base64.b64encode(b"__debezium_unavailable_value").decode()),
        (field("v", "array", items={"type": "string"}), ["__debezium_unavailable_value"]),
        (field("v", "array", items={"type": "int32"}), list(b"__debezium_unavailable_value")),
        (
            field("v", "map", keys={"type": "string"}, values={"type": "string"}),
            {"__debezium_unavailable_value": "__debezium_unavailable_value"},
        ),
    ],
    ids=["bytes", "texts", "numbers", "map"],
)
def test_the_placeholder_is_known_in_every_kind_of_column(of: dict[str, Any], raw: Any) -> None:
    rows = rows_of(TableShape(columns_of({"fields": [ID, of]}), ("id",)))
    assert change(rows, wrapped([ID, of], payload("u", None, {"id": 1, "v": raw}))) == RowChange(
        "orders", [1, UNCHANGED]
    )


@pytest.mark.parametrize(
    ("value", "key", "reason"),
    [
        (b"{", None, "not JSON"),
        (b"\xff", None, "not JSON"),
        (b"5", None, "no `op`"),
        (bare({"id": 1}), None, "no `op`"),
        (bare(payload("x", None, None)), None, "`op` is 'x'"),
        (bare(payload("c", None, None)), None, "without `after`"),
        (bare(payload("c", None, "text")), None, "`after` is not a row"),
        (bare(payload("c", None, {"id": None, "name": "a"})), None, r"without its key \(id\)"),
        (bare(payload("c", None, {"id": "x", "name": "a"})), None, "column 'id': 'x' is not a whole number"),
        (bare(payload("d", {"name": "a"}, None)), None, "a deleted row without its key"),
        (None, None, "neither a key nor a value"),
        (
            wrapped([field("id", "int32", "io.debezium.time.Date")], payload("c", None, {"id": 10**9})),
            None,
            "column 'id'",
        ),
        (
            wrapped([{"field": "id", "type": "int128"}], payload("c", None, {"id": 1})),
            None,
            "its schema cannot be parsed",
        ),
        (bare({"schema": {"type": "struct", "fields": []}, "payload": payload("c", None, {})}), None, "has no `after`"),
    ],
)
def test_what_is_not_understood_has_a_reason(value: bytes | None, key: bytes | None, reason: str) -> None:
    with pytest.raises(BadMessageError, match=reason):
        change(rows_of(), value, key)


def test_columns_that_are_added_come_at_the_end() -> None:
    rows = rows_of(declared=False)
    assert rows.grow(rows.event(wrapped([ID, NAME], payload("c", None, {"id": 1})))) is None
    wider = wrapped([ID, field("paid", "boolean"), NAME], payload("c", None, {"id": 1, "paid": True, "name": "a"}))
    event = rows.event(wider)
    grown = rows.grow(event)
    assert grown is not None
    assert grown.columns == from_ddl("id bigint, name string, paid boolean")
    assert rows.change(event, None) == RowChange("orders", [1, "a", True])
    narrower = wrapped([ID], payload("c", None, {"id": 2}))
    assert rows.grow(rows.event(narrower)) is None
    assert change(rows, narrower) == RowChange("orders", [2, None, None])
    declared = rows_of()
    assert declared.grow(declared.event(wider)) is None


AVRO_COLUMNS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "small", "type": {"type": "int", "connect.type": "int16"}},
    {
        "name": "amount",
        "type": [
            "null",
            {
                "type": "bytes",
                "scale": 2,
                "precision": 10,
                "connect.name": "org.apache.kafka.connect.data.Decimal",
                "connect.parameters": {"scale": "2", "connect.decimal.precision": "10"},
                "logicalType": "decimal",
            },
        ],
    },
    {"name": "day", "type": ["null", {"type": "int", "connect.name": "io.debezium.time.Date"}]},
    {
        "name": "at",
        "type": {
            "type": "long",
            "connect.name": "org.apache.kafka.connect.data.Timestamp",
            "logicalType": "timestamp-millis",
        },
    },
    {"name": "plain_day", "type": {"type": "int", "logicalType": "date"}},
    {
        "name": "any",
        "type": {
            "type": "record",
            "name": "VariableScaleDecimal",
            "namespace": "io.debezium.data",
            "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
            "connect.name": "io.debezium.data.VariableScaleDecimal",
        },
    },
    {"name": "again", "type": ["null", "io.debezium.data.VariableScaleDecimal"]},
    {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
    {"name": "counts", "type": {"type": "map", "values": "int"}},
    {"name": "mood", "type": {"type": "enum", "name": "Mood", "symbols": ["ok", "bad"]}},
    {"name": "toast", "type": ["null", "string"]},
]
AVRO = avro_envelope(AVRO_COLUMNS)


def test_avro_is_read_with_the_schema_of_its_id(tmp_path: Path) -> None:
    after = {
        "id": 1,
        "small": 2,
        "amount": Decimal("-12.34"),
        "day": 1,
        "at": datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
        "plain_day": date(2024, 1, 1),
        "any": {"scale": 1, "value": b"\x05"},
        "again": {"scale": 0, "value": b"\xff"},
        "tags": ["a", None],
        "counts": {"a": 1},
        "mood": "bad",
        "toast": "__debezium_unavailable_value",
    }
    said = {"before": None, "after": after, "source": {"ts_ms": 5}, "op": "u", "ts_ms": None}
    messages = AvroMessages(Schemas(None, {}, 1.0, {7: json.dumps(AVRO).encode(), 8: b'"long"', 9: b'{"type": "x"}'}))
    schema = messages.event(framed(7, AVRO, said)).row_schema  # type: ignore[union-attr]
    shape = TableShape(columns_of(schema or {}), ("id",))
    assert shape.columns == from_ddl(
        "id bigint, small smallint, amount decimal(10,2), day date, at timestamp_ntz, plain_day date, "
        "any decimal(38,18), again decimal(38,18), tags array<string>, counts map<string, int>, mood string, "
        "toast string"
    )
    rows = rows_of(shape, messages)
    scale = Decimal(10) ** -18
    assert change(rows, framed(7, AVRO, said)) == RowChange(
        "orders",
        [
            1,
            2,
            Decimal("-12.34"),
            date(1970, 1, 2),
            datetime(2023, 11, 14, 22, 13, 20, 123_000),
            date(2024, 1, 1),
            Decimal("0.5").quantize(scale),
            Decimal(-1).quantize(scale),
            ["a", None],
            [("a", 1)],
            "bad",
            UNCHANGED,
        ],
    )
    assert change(rows, None, framed(8, "long", 4)) == RowChange("orders", None, before=(4,))
    for value, reason in (
        (b"{}", "zero byte"),
        (framed(7, AVRO, said)[:-3], "not Avro of its schema|ends at byte"),
        (framed(7, AVRO, said) + b"x", "ends at byte"),
        (framed(6, AVRO, said), "has no schema 6"),
        (framed(9, AVRO, said), "schema 9 of the registry cannot be parsed"),
    ):
        with pytest.raises(BadMessageError, match=reason):
            change(rows, value)


def test_options_that_do_not_fit_are_refused() -> None:
    good = {"brokers": "k:9092", "topic": "t"}
    for bad, reason in (
        ({"format": "avro"}, "belong together"),
        ({"registry": {"url": "http://r"}}, "belong together"),
        ({"columns": "id numbers"}, "not a list of columns"),
        ({"options": {"group.id": "g"}}, "positions are kept"),
        ({"on_error": "ignore"}, "fail"),
    ):
        with pytest.raises(ValidationError, match=reason):
            DebeziumTable(**good, **bad)  # type: ignore[arg-type]


def test_tables_of_one_cluster_are_one_group() -> None:
    secret = {"sasl": "PLAIN", "username": "u", "password": "hidden"}
    table = DebeziumTable(brokers=["b:1", "a:1"], topic="t", security=secret)  # type: ignore[arg-type]
    other = DebeziumTable(brokers=["a:1", "b:1"], topic="o")
    assert table.group == other.group == "debezium a:1,b:1"
    assert "hidden" not in f"{table!r} {table.label} {table.group}"
    context = Context(Path(), "state")
    shapes = {"t": SHAPE, "o": SHAPE}
    with pytest.raises(ProjectError) as refused:
        DebeziumTable.reader({"t": table, "o": other}, shapes, None, context)
    assert refused.value.code == "connections-differ"
    with pytest.raises(ProjectError) as refused:
        DebeziumTable.reader({"t": table, "o": table}, shapes, None, context)
    assert refused.value.code == "topic-taken"


# --- with a real broker ---


class Connector:
    """Plays the connector of one table: keeps the rows and writes what it does to them."""

    def __init__(self, kafka: Kafka, topic: str, value: Callable[[Any], bytes], key: Callable[[Any], bytes]) -> None:
        self._producer = Producer({"bootstrap.servers": kafka.address, "linger.ms": 1, "log_level": 0})
        self._topic, self._value, self._key = topic, value, key
        self.rows: dict[int, dict[str, Any]] = {}

    def send(self, key: Any, value: bytes | None) -> None:
        self._producer.produce(self._topic, value, None if key is None else self._key({"id": key}))

    def put(self, row: dict[str, Any], op: str | None = None) -> None:
        old = self.rows.get(row["id"])
        self.rows[row["id"]] = row
        self.send(row["id"], self._value(payload(op or ("c" if old is None else "u"), None, row)))

    def delete(self, key: int) -> None:
        del self.rows[key]
        self.send(key, self._value(payload("d", {"id": key, "name": None}, None)))
        self.send(key, None)

    def flush(self) -> None:
        assert self._producer.flush(30) == 0

    def table(self) -> list[dict[str, Any]]:
        return [self.rows[key] for key in sorted(self.rows)]


def wrapped_value(said: Any) -> bytes:
    return wrapped([ID, NAME], said)


def plain_key(said: Any) -> bytes:
    return wrapped_key([ID], said)


@pytest.fixture
def followed(kafka: Kafka, topic: Callable[..., str]) -> tuple[DebeziumTable, Connector]:
    name = topic(partitions=3)
    return DebeziumTable(brokers=[kafka.address], topic=name), Connector(kafka, name, wrapped_value, plain_key)


def read_all(table: DebeziumTable, applied: Applied, context: Context, connector: Connector) -> None:
    reader = table.reader({"orders": table}, applied.shapes, applied.position, context)
    try:
        applied.follow(reader, lambda: applied.table("orders") == connector.table() and "orders" in applied.complete)
        assert reader.lag() in (0, None), "nothing is left, or nothing was told yet"
    finally:
        reader.close()
        reader.close()


@pytest.mark.service
def test_a_table_is_what_its_topic_says(followed: tuple[DebeziumTable, Connector], context: Context) -> None:
    table, connector = followed
    chance = random.Random(7)
    for number in range(300):
        connector.put({"id": number, "name": f"n{number}"}, "r")
    connector.flush()
    shape = table.shape(context)
    assert shape == SHAPE
    table.check(context)
    applied = Applied(orders=shape)
    for _ in range(3):  # a new reader each time goes on where the last one was
        for _ in range(300):
            key = chance.randrange(400)
            if key in connector.rows and chance.random() < 0.3:
                connector.delete(key)
            else:
                connector.put({"id": key, "name": chance.choice(["a", "b", None])})
        connector.flush()
        read_all(table, applied, context, connector)
    assert [sorted(taken.begins) for taken in applied.taken if taken.begins] == [["orders"]]
    assert [sorted(taken.ends) for taken in applied.taken if taken.ends] == [["orders"]]
    assert applied.taken[-1].at == datetime.fromtimestamp(1_700_000_000, UTC)


@pytest.mark.service
def test_a_first_reading_that_was_cut_off_begins_again(
    followed: tuple[DebeziumTable, Connector], context: Context
) -> None:
    table, connector = followed
    for number in range(50):
        connector.put({"id": number, "name": "a"}, "r")
    connector.flush()
    applied = Applied(orders=SHAPE)
    reader = table.reader({"orders": table}, applied.shapes, None, context)
    first = reader.read(10)
    reader.close()
    assert first is not None
    assert first.begins == {"orders"}
    position = {"orders": {**first.position["orders"], "until": {"0": 99, "1": 99, "2": 99}}}
    reader = table.reader({"orders": table}, applied.shapes, position, context)
    applied.follow(reader, lambda: "orders" in applied.complete)
    reader.close()
    assert applied.table("orders") == connector.table()
    assert applied.taken[0].begins == {"orders"}
    assert "until" not in (applied.position or {})["orders"]


@pytest.mark.service
def test_added_columns_truncation_and_what_is_not_understood(
    followed: tuple[DebeziumTable, Connector], context: Context, kafka: Kafka, topic: Callable[..., str]
) -> None:
    name = topic()
    table = DebeziumTable(brokers=[kafka.address], topic=name)
    connector = Connector(kafka, name, wrapped_value, plain_key)
    applied = Applied(orders=SHAPE)
    connector.put({"id": 1, "name": "a"})
    connector.flush()
    read_all(table, applied, context, connector)
    connector.send(None, wrapped_value(payload("t", None, None)))
    wider = wrapped([ID, NAME, field("paid", "boolean")], payload("c", None, {"id": 2, "name": "b", "paid": True}))
    connector.send(2, wider)
    connector.send(3, b"no event")
    connector.send(4, wrapped_value(payload("c", None, {"id": 4, "name": "d"})))
    connector.flush()
    reader = table.reader({"orders": table}, applied.shapes, applied.position, context)
    with pytest.raises(ProjectError) as stopped:
        applied.follow(reader, lambda: False)
    reader.close()
    assert stopped.value.code == "message-malformed"
    assert f"topic '{name}', partition 0, offset 3" in stopped.value.message
    assert applied.table("orders") == [{"id": 2, "name": "b", "paid": True}]
    lenient = DebeziumTable(brokers=[kafka.address], topic=name, on_error="skip")
    reader = lenient.reader({"orders": lenient}, applied.shapes, applied.position, context)
    applied.follow(reader, lambda: len(applied.table("orders")) == 2)
    reader.close()
    assert applied.table("orders")[1] == {"id": 4, "name": "d", "paid": None}
    assert (applied.position or {})["orders"]["skipped"] == 1
    declared = DebeziumTable(
        brokers=[kafka.address], topic=name, on_error="skip", columns="id bigint, name string, paid boolean, more int"
    )
    reader = declared.reader({"orders": declared}, applied.shapes, applied.position, context)
    applied.follow(reader, lambda: "more" in applied.shapes["orders"].columns.names and not applied._came)
    reader.close()
    assert [row["id"] for row in applied.table("orders")] == [2, 4], "all was read again"


@pytest.mark.service
def test_a_topic_made_anew_or_emptied_is_noticed(kafka: Kafka, topic: Callable[..., str], context: Context) -> None:
    name = topic()
    table = DebeziumTable(brokers=[kafka.address], topic=name, columns="id bigint, name string")
    assert table.shape(context) == TableShape(SHAPE.columns)
    undeclared = DebeziumTable(brokers=[kafka.address], topic=name)
    with pytest.raises(ProjectError, match="no change event yet") as unknown:
        undeclared.shape(context)
    assert unknown.value.code == "table-columns-unknown"
    applied = Applied(orders=SHAPE)
    connector = Connector(kafka, name, wrapped_value, plain_key)
    read_all(table, applied, context, connector)  # an empty table is whole as well
    for number in range(5):
        connector.put({"id": number, "name": "a"})
    connector.flush()
    read_all(table, applied, context, connector)
    position = dict(applied.position or {})
    behind = {"orders": {**position["orders"], "offsets": {"0": 2}}}
    admin, part = kafka.admin(), TopicPartition(name, 0, 4)
    admin.delete_records([part])[part].result(20)
    with pytest.raises(ProjectError) as lost:
        table.reader({"orders": table}, applied.shapes, behind, context)
    assert lost.value.code == "table-changes-lost"
    for void in ({"id": "another"}, {"offsets": {"0": 6}}):
        with pytest.raises(ProjectError) as recreated:
            table.reader({"orders": table}, applied.shapes, {"orders": {**position["orders"], **void}}, context)
        assert recreated.value.code == "topic-recreated"
        assert recreated.value.exit_code is Exit.CONFLICT


@pytest.mark.service
def test_two_tables_of_one_cluster_and_a_third_that_comes_later(
    kafka: Kafka, topic: Callable[..., str], context: Context
) -> None:
    key_schema = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
    simple = avro_envelope([{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}])

    def avro_value(said: Any) -> bytes:
        return framed(41, simple, said)

    def avro_key(said: Any) -> bytes:
        return framed(42, key_schema, said)

    with registry({41: simple, 42: key_schema}) as url:
        names = [topic(partitions=2) for _ in range(3)]
        makers = [(wrapped_value, plain_key), (bare, bare), (avro_value, avro_key)]
        connectors = [Connector(kafka, name, *maker) for name, maker in zip(names, makers, strict=True)]
        options: list[dict[str, Any]] = [
            {},
            {"columns": "id bigint, name string"},
            {"format": "avro", "registry": {"url": url}},
        ]
        made = [DebeziumTable(brokers=[kafka.address], topic=n, **o) for n, o in zip(names, options, strict=True)]
        tables = dict(zip(("json", "bare", "avro"), made, strict=True))
        for connector in connectors:
            for number in range(20):
                connector.put({"id": number, "name": "a"})
            connector.delete(3)
            connector.flush()
        shapes = {name: table.shape(context) for name, table in tables.items()}
        assert shapes == dict.fromkeys(tables, SHAPE)
        applied = Applied(**shapes)
        for count in (2, 3):
            some = dict(list(tables.items())[:count])
            reader = DebeziumTable.reader(some, shapes, applied.position, context)
            applied.follow(reader, lambda some=some: applied.complete == set(some))  # type: ignore[misc]
            reader.close()
        for name, connector in zip(tables, connectors, strict=True):
            assert applied.table(name) == connector.table()
    assert [taken.begins for taken in applied.taken if taken.begins] == [{"json", "bare"}, {"avro"}]


@pytest.mark.service
def test_partitions_that_are_added_are_read_and_a_topic_made_anew_is_not(
    kafka: Kafka, topic: Callable[..., str], context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debezium_reader, "_LOOK_AGAIN_SECONDS", 0.0)
    name = topic()
    table = DebeziumTable(brokers=[kafka.address], topic=name)
    connector = Connector(kafka, name, wrapped_value, plain_key)
    applied = Applied(orders=SHAPE)
    reader = table.reader({"orders": table}, applied.shapes, None, context)
    applied.follow(reader, lambda: "orders" in applied.complete)
    admin = kafka.admin()
    admin.create_partitions([NewPartitions(name, 3)])[name].result(20)
    assert await_true(lambda: len(admin.list_topics(name, timeout=5).topics[name].partitions) == 3, 20)
    connector = Connector(kafka, name, wrapped_value, plain_key)
    for number in range(30):
        connector.put({"id": number, "name": "a"})
    connector.flush()
    applied.follow(reader, lambda: len(applied.table("orders")) == 30)
    assert set((applied.position or {})["orders"]["offsets"]) == {"0", "1", "2"}
    admin.delete_topics([name])[name].result(20)
    assert await_true(lambda: name not in admin.list_topics(timeout=5).topics, 20)
    kafka.create_topic(name, 3)
    with pytest.raises(ProjectError) as stopped:
        applied.follow(reader, lambda: False)
    assert stopped.value.code == "topic-recreated"
    reader.close()


@pytest.mark.service
def test_a_broker_that_goes_away_is_waited_for_by_a_new_reader(own_kafka: Kafka, context: Context) -> None:
    own_kafka.create_topic("orders")
    table = DebeziumTable(brokers=[own_kafka.address], topic="orders")
    connector = Connector(own_kafka, "orders", wrapped_value, plain_key)
    connector.put({"id": 1, "name": "a"})
    connector.flush()
    applied = Applied(orders=SHAPE)
    reader = table.reader({"orders": table}, applied.shapes, None, context)
    applied.follow(reader, lambda: applied.table("orders") == connector.table())
    own_kafka.stop()
    with pytest.raises(ProjectError) as away:
        applied.follow(reader, lambda: False, seconds=60)
    assert (away.value.code, away.value.exit_code) == ("broker-unreachable", Exit.TRANSIENT)
    reader.close()
    own_kafka.start()
    connector.put({"id": 2, "name": "b"})
    connector.flush()
    read_all(table, applied, context, connector)
