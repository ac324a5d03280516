"""Arrow columns to Avro records."""

from __future__ import annotations

import io
import re
from typing import Any

import fastavro
import pyarrow as pa

from headrace.core.encoding.avro import AvroSchema
from headrace.core.encoding.python_values import python_values
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.format import Encoder
from headrace.core.schema import ddl_type

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WIDER = {
    "int32": ("int8", "int16"),
    "int64": ("int8", "int16", "int32"),
    "float": ("int8", "int16"),
    "double": ("int8", "int16", "int32", "float"),
}


class AvroEncoder(Encoder):
    """Encodes rows as records of one schema."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        """One schemaless record per row; raises ValueError for a value that the schema cannot hold."""
        out = []
        for row in python_values(rows, "strict"):
            buffer = io.BytesIO()
            try:
                fastavro.schemaless_writer(buffer, self._schema, row)
            except (ValueError, TypeError, KeyError, OverflowError) as error:
                raise ValueError(f"a row cannot be written as Avro: {error}") from error
            out.append(buffer.getvalue())
        return pa.array(out, pa.binary())


def check_columns(schema: pa.Schema, avro: AvroSchema) -> None:
    """Refuse columns without a field, and required fields without a column."""
    known = avro.arrow()
    for column in schema:
        if column.name not in known.names:
            hint = did_you_mean(column.name, known.names, "fields")
            raise ProjectError(
                "unknown-column", f"the Avro schema has no field for the column '{column.name}'", hint=hint
            )
        _check_type(column.type, known.field(column.name).type, column.name)
    for name, field in avro.fields.items():
        nullable = isinstance(field["type"], list) and "null" in field["type"]
        if name not in schema.names and "default" not in field and not nullable:
            hint = f"add it to the SQL, or give the field a default; columns: {', '.join(schema.names)}"
            raise ProjectError("missing-column", f"the Avro schema needs a column '{name}'", hint=hint)
        if name in schema.names and avro.is_json(field["type"]):
            hint = "leave it out, or write json or protobuf"
            raise ProjectError(
                "wrong-column-type", f"field '{name}' is a union or contains itself: it can only be read", hint=hint
            )


def _check_type(kind: pa.DataType, expected: pa.DataType, path: str) -> None:
    if pa.types.is_struct(kind) and pa.types.is_struct(expected):
        parts = {part.name: part.type for part in expected}
        for part in kind:
            if part.name not in parts:
                hint = did_you_mean(part.name, parts, "fields")
                raise ProjectError(
                    "unknown-column", f"the Avro schema has no field for '{path}.{part.name}'", hint=hint
                )
            _check_type(part.type, parts[part.name], f"{path}.{part.name}")
    elif pa.types.is_map(kind) and pa.types.is_map(expected):
        _check_type(kind.item_type, expected.item_type, f"{path}.value")
    elif pa.types.is_list(kind) and pa.types.is_list(expected):
        _check_type(kind.value_type, expected.value_type, f"{path}[]")
    elif kind != expected and str(kind) not in _WIDER.get(str(expected), ()):
        raise ProjectError(
            "wrong-column-type",
            f"column '{path}' is {ddl_type(kind)}, but its field takes {ddl_type(expected)}",
            hint=f"cast it in the SQL: CAST({path} AS {ddl_type(expected)})",
        )


def derived_schema(schema: pa.Schema) -> Any:
    """An Avro schema for any columns, each of which may be null."""
    return fastavro.parse_schema(_record(pa.struct(list(schema)), "Row"))


def _record(kind: pa.StructType, name: str) -> dict[str, Any]:
    fields = [
        {"name": _name(part.name), "type": _nullable(part.type, f"{name}_{part.name}"), "default": None}
        for part in kind
    ]
    return {"type": "record", "name": name, "fields": fields}


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        hint = f"rename it in the SQL: `{name}` AS {re.sub('[^A-Za-z0-9_]', '_', name)}"
        raise ProjectError("bad-avro-name", f"'{name}' cannot be the name of an Avro field", hint=hint)
    return name


def _nullable(kind: pa.DataType, name: str) -> Any:
    return ["null", _avro(kind, name)]


def _avro(kind: pa.DataType, name: str) -> Any:
    if pa.types.is_struct(kind):
        return _record(kind, name)
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return {"type": "map", "values": _nullable(kind.item_type, f"{name}_value")}
    if pa.types.is_list(kind):
        return {"type": "array", "items": _nullable(kind.value_type, f"{name}_item")}
    if pa.types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if str(kind) not in _PLAIN:
        raise ProjectError(
            "wrong-column-type",
            f"a column of type {ddl_type(kind)} cannot be written as Avro",
            hint="map keys are strings",
        )
    return _PLAIN[str(kind)]


_PLAIN: dict[str, Any] = {
    "bool": "boolean",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "date32[day]": {"type": "int", "logicalType": "date"},
}
