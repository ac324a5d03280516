"""Kafka Connect's schemas as columns: the type and conversion of a value, by its Connect type and semantic name.

JSON has the schema in the message, Avro in a registry; both have the form of Connect's JSON here. Values are those of
JSON or Avro, without Avro's logical types; bytes in JSON are base64.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

from headrace.core.encoding.json_values import Convert, converter, unfit_value
from headrace.core.schema import TIMESTAMP

Schema = Mapping[str, Any]
Meaning = tuple[pa.DataType, Convert]

_EPOCH = datetime(1970, 1, 1)
_EXACT = Context(prec=200)
_MOST_DIGITS = 38
_ANY_DECIMAL = pa.decimal128(_MOST_DIGITS, 18)
_LOCAL = pa.timestamp("us")
_MILLIS, _MICROS, _NANOS = 10**3, 10**6, 10**9
# PostgreSQL's infinite times become the last and first possible ones, which keeps their order
_INFINITE, _INFINITE_DAYS = 9_223_372_036_825_200_000, 2**31 - 1
_POINT = pa.struct([("x", pa.float64()), ("y", pa.float64())])
_PLAIN = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
}


def meaning(schema: Schema) -> Meaning:
    """The type of a column and the conversion of its values other than null. Raises ValueError for an unknown type."""
    kind, convert = _meaning(schema)
    return kind, lambda value: None if value is None else convert(value)


def _meaning(schema: Schema) -> Meaning:
    name, literal = schema.get("name") or "", schema["type"]
    if name in _NAMED:
        return _NAMED[name]
    if name == "org.apache.kafka.connect.data.Decimal":
        return _decimal_of(schema.get("parameters") or {})
    match literal:
        case "bytes":
            return pa.binary(), as_bytes
        case "array":
            item, convert = meaning(schema["items"])
            return pa.list_(item), _list_of(convert)
        case "map":
            return _map_of(schema)
        case "struct":
            return _struct_of(schema)
        case plain if plain in _PLAIN:
            return _PLAIN[plain], converter(_PLAIN[plain])
    raise ValueError(f"no column for values of type '{literal}'{f' ({name})' if name else ''}")


def columns_of(schema: Schema) -> pa.Schema:
    return pa.schema([(field["field"], meaning(field)[0]) for field in schema["fields"]])


def converters_of(schema: Schema, columns: pa.Schema) -> list[tuple[str, Convert]]:
    """The conversion of a struct to a row of the requested columns; columns that the struct lacks are null."""
    fields = {field["field"]: field for field in schema["fields"]}
    return [(column.name, _fitted(fields.get(column.name), column.type)) for column in columns]


def _fitted(field: Schema | None, target: pa.DataType) -> Convert:
    if field is None:
        return converter(target)
    kind, convert = meaning(field)
    if kind == target:
        return convert
    fit = converter(target)
    return lambda value: fit(convert(value))


def bare_converters(columns: pa.Schema, unit: int, decimals: str) -> list[tuple[str, Convert]]:
    """The same for values without a schema, by the requested types. Times count 1/`unit` seconds."""
    return [(column.name, _bare(column.type, unit, decimals)) for column in columns]


def _bare(kind: pa.DataType, unit: int, decimals: str) -> Convert:
    fit = converter(kind)
    if pa.types.is_date(kind):
        return lambda value: _day(value) if isinstance(value, int) else fit(value)
    if pa.types.is_timestamp(kind):
        count = _since_epoch(unit)
        return lambda value: fit(count(value) if isinstance(value, int) else value)
    if pa.types.is_decimal(kind):
        return lambda value: fit(_bare_decimal(value, kind.scale, decimals))
    if pa.types.is_list(kind):
        many = _list_of(_bare(kind.value_type, unit, decimals))
        return lambda value: None if value is None else many(value)
    return fit


def _bare_decimal(value: Any, scale: int, decimals: str) -> Any:
    if isinstance(value, dict):
        return _variable(value)
    return _unscaled(value, scale) if isinstance(value, str) and decimals == "base64" else value


def as_bytes(value: Any) -> bytes:
    """Bytes; in JSON they are base64."""
    return base64.b64decode(value, validate=True) if isinstance(value, str) else bytes(value)


def _unscaled(value: Any, scale: int) -> Decimal:
    """The unscaled number of a decimal, from bytes or, depending on the connector, a number."""
    if isinstance(value, int | float | Decimal):
        return Decimal(str(value))
    return Decimal(int.from_bytes(as_bytes(value), "big", signed=True)).scaleb(-scale, _EXACT)


def _variable(value: Any) -> Decimal:
    return _unscaled(value["value"], value["scale"])


def _decimal_of(parameters: Mapping[str, str]) -> Meaning:
    scale = int(parameters.get("scale", 0))
    precision = int(parameters.get("connect.decimal.precision", _MOST_DIGITS))
    if precision > _MOST_DIGITS or not 0 <= scale <= precision:  # too large for any column: its digits as text
        return pa.string(), lambda value: f"{_unscaled(value, scale):f}"
    kind = pa.decimal128(precision, scale)
    fit = converter(kind)
    return kind, lambda value: fit(_unscaled(value, scale))


def _list_of(convert: Convert) -> Convert:
    def many(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise unfit_value(value, "a list")
        return [convert(element) for element in value]

    return many


def _map_of(schema: Schema) -> Meaning:
    key, as_key = meaning(schema["keys"])
    item, as_item = meaning(schema["values"])

    def pairs(value: Any) -> list[tuple[Any, Any]]:
        # a map whose keys are not texts is a list of pairs in JSON
        return [(as_key(k), as_item(v)) for k, v in (value.items() if isinstance(value, dict) else value)]

    return pa.map_(key, item), pairs


def _struct_of(schema: Schema) -> Meaning:
    parts = [(field["field"], *meaning(field)) for field in schema["fields"]]

    def struct(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise unfit_value(value, "an object")
        return {name: convert(value.get(name)) for name, _, convert in parts}

    return pa.struct([(name, kind) for name, kind, _ in parts]), struct


def _day(value: Any) -> date:
    if abs(value) >= _INFINITE_DAYS:
        return date.max if value > 0 else date.min
    return (_EPOCH + timedelta(days=value)).date()


def _since_epoch(unit: int) -> Callable[[Any], datetime]:
    def moment(value: Any) -> datetime:
        if abs(value) >= _INFINITE and unit != _NANOS:
            return datetime.max if value > 0 else datetime.min
        return _EPOCH + timedelta(microseconds=value * 1_000_000 // unit)

    return moment


def _zoned(value: Any) -> datetime:
    """A year of more than four digits has a sign: it stands for infinity."""
    if isinstance(value, str) and value[:1] in ("+", "-"):
        return (datetime.max if value[0] == "+" else datetime.min).replace(tzinfo=UTC)
    moment: datetime = _instant(value)
    return moment


def _time_of_day(unit: int) -> Callable[[Any], str]:
    """As text, since Spark has no such type; MySQL's may be negative or longer than a day."""

    def text(value: Any) -> str:
        seconds, rest = divmod(abs(value) * 1_000_000 // unit, 1_000_000)
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        return f"{'-' if value < 0 else ''}{clock}{f'.{rest:06}' if rest else ''}"

    return text


def _point(value: Any) -> dict[str, float]:
    return {"x": float(value["x"]), "y": float(value["y"])}


_instant, _local, _date = converter(TIMESTAMP), converter(_LOCAL), converter(pa.date32())
_any_decimal = converter(_ANY_DECIMAL)
_NAMED: dict[str, Meaning] = {
    "io.debezium.time.Date": (pa.date32(), _day),
    "org.apache.kafka.connect.data.Date": (pa.date32(), _day),
    "io.debezium.time.IsoDate": (pa.date32(), lambda value: _date(value.rstrip("Z"))),
    "io.debezium.time.Timestamp": (_LOCAL, _since_epoch(_MILLIS)),
    "org.apache.kafka.connect.data.Timestamp": (_LOCAL, _since_epoch(_MILLIS)),
    "io.debezium.time.MicroTimestamp": (_LOCAL, _since_epoch(_MICROS)),
    "io.debezium.time.NanoTimestamp": (_LOCAL, _since_epoch(_NANOS)),
    "io.debezium.time.IsoTimestamp": (_LOCAL, _local),
    "io.debezium.time.ZonedTimestamp": (TIMESTAMP, _zoned),
    "io.debezium.time.Time": (pa.string(), _time_of_day(_MILLIS)),
    "org.apache.kafka.connect.data.Time": (pa.string(), _time_of_day(_MILLIS)),
    "io.debezium.time.MicroTime": (pa.string(), _time_of_day(_MICROS)),
    "io.debezium.time.NanoTime": (pa.string(), _time_of_day(_NANOS)),
    "io.debezium.data.VariableScaleDecimal": (_ANY_DECIMAL, lambda value: _any_decimal(_variable(value))),
    "io.debezium.data.geometry.Point": (_POINT, _point),
}
