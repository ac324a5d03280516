"""Parsers of Debezium's change events in JSON and Avro, independent of a table."""

from __future__ import annotations

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import fastavro
import msgspec

from headrace.systems.schema_registry import RegistryUnreachableError, Schemas
from headrace.systems.services import service_unavailable
from headrace.tables.debezium.connect import Schema

_HEADER = 5
_WRAPPER = {"schema", "payload"}


class BadMessageError(ValueError):
    """A message that is not a change event of the table."""


@dataclass(frozen=True)
class MessagePart:
    """The key or the value of a message, with its Connect schema if it has one."""

    payload: Any
    schema: Schema | None


@dataclass(frozen=True)
class DebeziumEvent:
    """One change: its operation, the row before and after it, and its time in milliseconds."""

    op: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    row_schema: Schema | None
    at: int | None


class MessageParser(ABC):
    """Parses messages. Raises BadMessageError."""

    @abstractmethod
    def part(self, data: bytes) -> MessagePart:
        """A key or a value."""

    def event(self, data: bytes) -> DebeziumEvent | None:
        """The event in a value; None for a tombstone."""
        part = self.part(data)
        payload = part.payload
        if payload is None:
            return None
        if not isinstance(payload, dict) or not isinstance(payload.get("op"), str):
            raise BadMessageError("it is not a change event: it has no `op`")
        for side in ("before", "after"):
            if not isinstance(payload.get(side), dict | None):
                raise BadMessageError(f"`{side}` is not a row")
        source = payload.get("source")
        at = (source.get("ts_ms") if isinstance(source, dict) else None) or payload.get("ts_ms")
        row_schema = None if part.schema is None else _field(part.schema, "after")
        return DebeziumEvent(
            payload["op"], payload.get("before"), payload.get("after"), row_schema, at if isinstance(at, int) else None
        )


def _field(schema: Schema, name: str) -> Schema:
    for field in schema.get("fields", ()):
        if field.get("field") == name and field.get("type") == "struct":
            found: Schema = field
            return found
    raise BadMessageError(f"the schema of the message has no `{name}`")


class JsonMessages(MessageParser):
    """JSON, with Connect's wrapper of `schema` and `payload` or without it."""

    def __init__(self) -> None:
        self._outer = msgspec.json.Decoder(dict[str, msgspec.Raw])
        self._inner = msgspec.json.Decoder(float_hook=Decimal)  # without loss of digits
        self._schemas: dict[bytes, Schema | None] = {}

    def part(self, data: bytes) -> MessagePart:
        """A key or a value."""
        try:
            if not data.lstrip().startswith(b"{"):
                return MessagePart(self._inner.decode(data), None)
            outer = self._outer.decode(data)
            if "payload" in outer and outer.keys() <= _WRAPPER:
                return MessagePart(self._inner.decode(outer["payload"]), self._schema(outer.get("schema")))
            return MessagePart({name: self._inner.decode(raw) for name, raw in outer.items()}, None)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadMessageError(f"it is not JSON: {error}") from error

    def _schema(self, raw: msgspec.Raw | None) -> Schema | None:
        """The schema in a message, which every message repeats: parsed once."""
        text = b"null" if raw is None else bytes(raw)
        if text not in self._schemas:
            self._schemas[text] = json.loads(text)
        return self._schemas[text]


class AvroMessages(MessageParser):
    """Avro behind the id of its schema in a registry, as Confluent writes it."""

    def __init__(self, schemas: Schemas) -> None:
        self._registry = schemas
        self._known: dict[int, tuple[Any, Schema]] = {}

    def part(self, data: bytes) -> MessagePart:
        """A key or a value."""
        if len(data) < _HEADER or data[0] != 0:
            raise BadMessageError("it does not start with a zero byte and a schema id")
        writer, schema = self._schema(int.from_bytes(data[1:_HEADER], "big"))
        body = data[_HEADER:]
        stream = io.BytesIO(body + b"\0")  # one byte more than the body: fastavro skips beyond the end without an error
        try:
            payload = fastavro.schemaless_reader(stream, writer, None)
        except Exception as error:  # for damaged bytes fastavro raises any error: EOFError, IndexError, …
            raise BadMessageError(f"it is not Avro of its schema: {type(error).__name__}: {error}"[:300]) from error
        if stream.tell() != len(body):
            raise BadMessageError(f"the record ends at byte {stream.tell()}, its value at {len(body)}")
        return MessagePart(payload, schema)

    def _schema(self, number: int) -> tuple[Any, Schema]:
        if number not in self._known:
            try:
                text = self._registry.text(number)
            except RegistryUnreachableError as error:
                raise service_unavailable("the schema registry", str(error)) from error
            if text is None:
                raise BadMessageError(f"the registry has no schema {number}")
            self._known[number] = _avro_schema(text, number)
        return self._known[number]


def _avro_schema(text: bytes, number: int) -> tuple[Any, Schema]:
    try:
        schema = json.loads(text)
        names: dict[str, Any] = {}
        connect = _connect(schema, names, "")
        return fastavro.parse_schema(_without_logical_types(schema)), connect
    except Exception as error:  # fastavro raises TypeError, KeyError and its own errors
        raise BadMessageError(f"schema {number} of the registry cannot be parsed: {error!r}"[:300]) from error


def _without_logical_types(schema: Any) -> Any:
    """A schema without logical types: Connect's names are more exact than Avro's logical types."""
    if isinstance(schema, list):
        return [_without_logical_types(one) for one in schema]
    if isinstance(schema, dict):
        return {name: _without_logical_types(part) for name, part in schema.items() if name != "logicalType"}
    return schema


_AVRO = {"int": "int32", "long": "int64", "float": "float", "double": "double", "enum": "string", "fixed": "bytes"}


# logical types that writers other than Connect use
_LOGICAL = {
    "decimal": "org.apache.kafka.connect.data.Decimal",
    "date": "io.debezium.time.Date",
    "time-millis": "io.debezium.time.Time",
    "time-micros": "io.debezium.time.MicroTime",
    "timestamp-millis": "io.debezium.time.Timestamp",
    "timestamp-micros": "io.debezium.time.MicroTimestamp",
}


def _connect(schema: Any, names: dict[str, Any], space: str) -> dict[str, Any]:
    """An Avro schema in the form of Connect. Named definitions can be referenced after they appear."""
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) != 1:
            raise ValueError(f"a union of {len(branches)} types")
        return _connect(branches[0], names, space)
    if isinstance(schema, str):
        known = names.get(schema) or names.get(f"{space}.{schema}")
        return known if known is not None else {"type": _AVRO.get(schema, schema)}
    kind = schema["type"]
    if not isinstance(kind, str):
        return _connect(kind, names, space)
    parameters = dict(schema.get("connect.parameters") or {})
    converted: dict[str, Any] = {
        "type": schema.get("connect.type") or _AVRO.get(kind, kind),
        "name": schema.get("connect.name") or _LOGICAL.get(schema.get("logicalType", "")),
        "parameters": parameters,
    }
    if schema.get("logicalType") == "decimal":
        parameters.setdefault("scale", str(schema.get("scale", 0)))
        parameters.setdefault("connect.decimal.precision", str(schema["precision"]))
    if "name" in schema:
        space = schema.get("namespace", schema["name"].rpartition(".")[0] or space)
        names[schema["name"]] = names[f"{space}.{schema['name'].rpartition('.')[2]}"] = converted
    match kind:
        case "record":
            fields = [{**_connect(field["type"], names, space), "field": field["name"]} for field in schema["fields"]]
            converted |= {"type": "struct", "fields": fields}
        case "array":
            converted["items"] = _connect(schema["items"], names, space)
        case "map":
            converted |= {"keys": {"type": "string"}, "values": _connect(schema["values"], names, space)}
    return converted
