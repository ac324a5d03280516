"""JSON schemas of columns, rows and filters, for OpenAPI 3.1."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from headrace.core.endpoints import Endpoint
from headrace.core.schema import ddl_type
from headrace.core.tables import TableShape

Schema = dict[str, Any]

_TYPE = "x-headrace-type"
_RANGES = ("$lt", "$lte", "$gt", "$gte")
_NOT_FINITE = ["NaN", "Infinity", "-Infinity"]
_LOCAL_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{3}([0-9]{3})?)?$"


def row_schema(endpoint: Endpoint) -> Schema:
    properties = {
        field.name: column_schema(field, nullable=field.name not in endpoint.key) for field in endpoint.columns
    }
    return {
        "type": "object",
        "description": endpoint.description or f"A row of {endpoint.name}.",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def changes_schema(shape: TableShape) -> Schema:
    """The schema of changes pushed to a table: one change, or several."""
    columns = {field.name: column_schema(field, nullable=field.name not in shape.key) for field in shape.columns}
    row = {
        "type": "object",
        "description": "A column that is left out is null; a delete needs only the key.",
        "properties": columns,
        "required": list(shape.key),
        "additionalProperties": False,
    }
    change = {
        "type": "object",
        "properties": {
            "op": {"enum": ["insert", "update", "upsert", "delete"]},
            "row": row,
            "id": {"type": "string", "minLength": 1, "maxLength": 255, "description": "A repeated id is ignored."},
        },
        "required": ["op", "row"],
        "additionalProperties": False,
    }
    several = {
        "type": "object",
        "properties": {"changes": {"type": "array", "items": change, "minItems": 1}},
        "required": ["changes"],
        "additionalProperties": False,
    }
    return {"oneOf": [change, several]}


def column_schema(field: pa.Field, *, nullable: bool = True) -> Schema:
    schema = value_schema(field.type)
    return {**(_or_null(schema) if nullable else schema), _TYPE: ddl_type(field.type)}


def value_schema(kind: pa.DataType) -> Schema:
    """The schema of the values of a type, without null."""
    types = pa.types
    if types.is_boolean(kind):
        return {"type": "boolean"}
    if types.is_integer(kind):
        return _integer(kind)
    if types.is_floating(kind):
        return {"anyOf": [{"type": "number", "format": "double"}, {"type": "string", "enum": _NOT_FINITE}]}
    if types.is_decimal(kind):
        return {"type": "string", "format": "decimal", "pattern": _digits(kind)}
    if types.is_binary(kind) or types.is_large_binary(kind):
        return {"type": "string", "format": "byte", "contentEncoding": "base64"}
    if types.is_date(kind):
        return {"type": "string", "format": "date"}
    if types.is_timestamp(kind):
        return {"type": "string", "format": "date-time"} if kind.tz else {"type": "string", "pattern": _LOCAL_TIME}
    return _nested(kind) if types.is_nested(kind) else {"type": "string"}


def filter_schema(endpoint: Endpoint, name: str) -> Schema:
    """The schema of `$filter`; `name` is the component name of this schema."""
    reference = {"$ref": f"#/components/schemas/{name}"}
    several = {"type": "array", "items": reference, "minItems": 2}
    columns = {field.name: _condition(field) for field in endpoint.columns}
    deep = any(pa.types.is_nested(field.type) for field in endpoint.columns)
    return {
        "type": "object",
        "description": "Conditions on columns; all must match. Fields within a column: `column.field`.",
        "properties": {**columns, "$and": several, "$or": several, "$not": reference},
        "additionalProperties": {} if deep else False,
    }


def query_schema(endpoint: Endpoint, filter_name: str, page: int | None) -> Schema:
    """The schema of a query, or of a count, which has no `page`."""
    orders = {field.name: {"enum": ["asc", "desc"]} for field in endpoint.columns}
    limit: Schema = {"type": "integer", "minimum": 0}
    if page is not None:
        limit = {**limit, "maximum": page, "default": min(50, page)}
    return {
        "type": "object",
        "properties": {
            "$filter": {"$ref": f"#/components/schemas/{filter_name}"},
            "$order_by": {"type": "object", "properties": orders, "additionalProperties": False},
            "$limit": limit,
            "$skip": {"type": "integer", "minimum": 0},
            "$after": {"type": "string", "description": "The cursor of the previous page."},
        },
        "additionalProperties": False,
    }


def _condition(field: pa.Field) -> Schema:
    kind = field.type
    value = _or_null(value_schema(kind))
    several = {"type": "array", "items": value}
    operators: Schema = {"$eq": value, "$ne": value, "$in": several, "$nin": several, "$not": {"type": "object"}}
    operators.update(dict.fromkeys(_RANGES, value_schema(kind)))
    searched = _searched(kind)
    if searched is not None:
        some = {"anyOf": [searched, {"type": "array", "items": searched}]}
        operators.update({"$contains": searched, "$matches_any": some, "$matches_all": some})
    condition = {"type": "object", "properties": operators, "additionalProperties": False, "minProperties": 1}
    within = pa.types.is_struct(kind) or pa.types.is_map(kind)
    # a list needs an operator; a struct or map can be followed by the names of its fields
    plain = [{"type": "null"}] if pa.types.is_nested(kind) else [value]
    return {"anyOf": [*plain, condition, *([{"type": "object", "minProperties": 1}] if within else [])]}


def _searched(kind: pa.DataType) -> Schema | None:
    """What can be searched in values of a type: words of a text, values of a list."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return {"type": "string"}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return value_schema(kind.value_type)
    return None


def _or_null(schema: Schema) -> Schema:
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    return {**schema, "type": [schema["type"], "null"]}


def _integer(kind: pa.DataType) -> Schema:
    low, high = (0, 2**kind.bit_width - 1) if pa.types.is_unsigned_integer(kind) else _signed(kind.bit_width)
    return {"type": "integer", "format": "int64" if kind.bit_width > 32 else "int32", "minimum": low, "maximum": high}


def _signed(bits: int) -> tuple[int, int]:
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _digits(kind: pa.DataType) -> str:
    before = max(kind.precision - kind.scale, 1)
    return f"^-?[0-9]{{1,{before}}}$" if kind.scale <= 0 else rf"^-?[0-9]{{1,{before}}}(\.[0-9]{{1,{kind.scale}}})?$"


def _nested(kind: pa.DataType) -> Schema:
    if pa.types.is_struct(kind):
        fields = {field.name: _or_null(value_schema(field.type)) for field in kind}
        return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    if pa.types.is_map(kind):
        return {"type": "object", "additionalProperties": _or_null(value_schema(kind.item_type))}
    return {"type": "array", "items": _or_null(value_schema(kind.value_type))}


def parameter_names(endpoint: Endpoint) -> list[str]:
    """Names of the key columns as URL parameters."""
    plain = re.compile(r"[A-Za-z0-9_.-]+")
    return [name if plain.fullmatch(name) else f"key{at}" for at, name in enumerate(endpoint.key, 1)]
