"""JSON Schema to Arrow fields. `required` and `enum`, which Arrow does not have, become field metadata."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import jsonschema_rs
import pyarrow as pa

from headrace.core.errors import ProjectError
from headrace.core.schema import TIMESTAMP

_FORMATS = {"date-time": TIMESTAMP, "date": pa.date32()}
_SIMPLE = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_(), "null": pa.string()}


def read_json_schema(text: bytes, file: str) -> pa.Schema:
    """The fields that a JSON Schema of objects describes."""
    try:
        document = json.loads(text)
        jsonschema_rs.meta.validate(document)
    except (ValueError, jsonschema_rs.ValidationError) as error:
        raise ProjectError(
            "bad-json-schema",
            f"'{file}' is not a JSON Schema: {str(error).splitlines()[0][:300]}",
            hint="Draft 4 and later are supported",
        ) from error
    kind = _SchemaWalker(document, file).type_of(document, "#", ())
    if not pa.types.is_struct(kind):
        raise ProjectError(
            "bad-json-schema",
            f"'{file}' describes no object with properties",
            hint="records are objects: give it `properties`",
        )
    return pa.schema(list(kind))


def is_required(field: pa.Field) -> bool:
    """Whether a record without this field is bad."""
    return b"required" in (field.metadata or {})


def allowed(field: pa.Field) -> tuple[str, ...] | None:
    """The only texts this field may hold, if they are listed."""
    listed = (field.metadata or {}).get(b"enum")
    return None if listed is None else tuple(json.loads(listed))


def plain(kind: pa.DataType) -> pa.DataType:
    """A type without metadata, all of whose parts are nullable."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, plain(kind.item_type))
    return pa.list_(plain(kind.value_type)) if pa.types.is_list(kind) else kind


class _SchemaWalker:
    """Walks one document; local references are followed."""

    def __init__(self, document: dict[str, Any], file: str) -> None:
        self._document = document
        self._file = file

    def type_of(self, schema: Any, path: str, seen: tuple[str, ...]) -> pa.DataType:
        schema, seen = self._resolved(schema, path, seen)
        names = self._names(schema, path)
        if names <= {"integer", "number"}:
            return _SIMPLE["number" if "number" in names else "integer"]
        if len(names) != 1:
            self._refuse(path, f"several types at once ({', '.join(sorted(names))})")
        match names.pop():
            case "string":
                encoded = schema.get("contentEncoding") == "base64"
                return pa.binary() if encoded else _FORMATS.get(schema.get("format", ""), pa.string())
            case "array":
                items = schema.get("items")
                if not isinstance(items, dict):
                    self._refuse(path, "an array without one schema for its items")
                return pa.list_(self.field("item", items, f"{path}/items", seen, required=False))
            case "object":
                return self._object(schema, path, seen)
            case simple:
                return _SIMPLE[simple]

    def field(self, name: str, schema: Any, path: str, seen: tuple[str, ...], *, required: bool) -> pa.Field:
        """A field with its type and its constraints."""
        kind = self.type_of(schema, path, seen)
        resolved, _ = self._resolved(schema, path, seen)
        metadata = {"required": "true"} if required else {}
        listed = [resolved["const"]] if "const" in resolved else resolved.get("enum")
        if listed is not None and pa.types.is_string(kind):
            metadata["enum"] = json.dumps([text for text in listed if isinstance(text, str)])
        return pa.field(
            name, kind, nullable=not required or self._takes_null(schema, path, seen), metadata=metadata or None
        )

    def _object(self, schema: dict[str, Any], path: str, seen: tuple[str, ...]) -> pa.DataType:
        properties = schema.get("properties")
        if properties:
            required = set(schema.get("required", ()))
            fields = [
                self.field(name, part, f"{path}/properties/{name}", seen, required=name in required)
                for name, part in properties.items()
            ]
            return pa.struct(fields)
        more = schema.get("additionalProperties")
        if not isinstance(more, dict):
            self._refuse(path, "an object without `properties`, and without a schema for `additionalProperties`")
        return pa.map_(pa.string(), self.type_of(more, f"{path}/additionalProperties", seen))

    def _resolved(self, schema: Any, path: str, seen: tuple[str, ...]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The schema behind references, and behind a choice between it and null."""
        if not isinstance(schema, dict):
            self._refuse(path, "no schema that says a type")
        reference = schema.get("$ref")
        if reference is not None:
            if reference in seen:
                self._refuse(path, f"a schema that contains itself ({reference})", code="recursive-schema")
            return self._resolved(self._referred(reference, path), path, (*seen, reference))
        choices = schema.get("oneOf") or schema.get("anyOf")
        if choices and "type" not in schema and "properties" not in schema:
            real = [choice for choice in choices if not isinstance(choice, dict) or choice.get("type") != "null"]
            if len(real) != 1:
                self._refuse(path, "a choice between several schemas")
            return self._resolved(real[0], path, seen)
        return schema, seen

    def _referred(self, reference: str, path: str) -> Any:
        if not reference.startswith("#"):
            self._refuse(path, f"a reference to another document ({reference})")
        node: Any = self._document
        for step in reference[1:].strip("/").split("/") if reference != "#" else ():
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, dict) or name not in node:
                self._refuse(path, f"a reference to nothing ({reference})")
            node = node[name]
        return node

    def _names(self, schema: dict[str, Any], path: str) -> set[str]:
        kind = schema.get("type")
        if kind is not None:
            return {kind} if isinstance(kind, str) else set(kind) - {"null"} or {"null"}
        if "properties" in schema or "additionalProperties" in schema:
            return {"object"}
        listed = [schema["const"]] if "const" in schema else schema.get("enum", [])
        if listed and all(text is None or isinstance(text, str) for text in listed):
            return {"string"}
        return self._refuse(path, "no type")

    def _takes_null(self, schema: Any, path: str, seen: tuple[str, ...]) -> bool:
        choices = schema.get("oneOf") or schema.get("anyOf") or []
        if any(isinstance(choice, dict) and choice.get("type") == "null" for choice in choices):
            return True
        resolved, _ = self._resolved(schema, path, seen)
        kind = resolved.get("type", [])
        return kind == "null" or "null" in (kind if isinstance(kind, list) else ()) or None in resolved.get("enum", ())

    def _refuse(self, path: str, what: str, code: str = "bad-json-schema") -> NoReturn:
        raise ProjectError(
            code,
            f"'{self._file}' has {what} at {path}: that is not a column type",
            hint="give it one type, or write `columns:` instead",
        )
