"""Avro schemas as Arrow schemas, and Avro container files as Arrow batches.

No Avro library produces Arrow: fastavro creates Python objects, which is most of the cost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Any, BinaryIO

import fastavro
import msgspec
import pyarrow as pa

from headrace.core.errors import ProjectError
from headrace.core.schema import TIMESTAMP

_PRIMITIVES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "null": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL = {
    "int-date": pa.date32(),
    "int-time-millis": pa.string(),
    "long-time-micros": pa.string(),
    "long-timestamp-millis": TIMESTAMP,
    "long-timestamp-micros": TIMESTAMP,
    "long-local-timestamp-millis": pa.timestamp("us"),
    "long-local-timestamp-micros": pa.timestamp("us"),
}

Convert = Callable[[Any], Any]


class AvroSchema:
    """One record schema. As in Avro, a named type can be used after its definition."""

    def __init__(self, schema: Any) -> None:
        self._named: dict[str, dict[str, Any]] = {}
        try:
            self.parsed: Any = fastavro.parse_schema(schema, named_schemas=self._named)
        except Exception as error:  # fastavro raises TypeError, KeyError and its own errors
            raise ProjectError(
                "bad-avro-schema", f"not an Avro schema: {error!r}"[:500], hint="see the Avro specification"
            ) from error
        if not isinstance(self.parsed, dict) or self.parsed.get("type") != "record":
            raise ProjectError(
                "bad-avro-schema", "the Avro schema is not a record", hint="records have a `type: record` schema"
            )

    @property
    def fields(self) -> dict[str, dict[str, Any]]:
        return {field["name"]: field for field in self.parsed["fields"]}

    def arrow(self) -> pa.Schema:
        """Return all columns. Unions of several types and recursive records become JSON strings."""
        return pa.schema([(name, self._arrow(field["type"])) for name, field in self.fields.items()])

    def pruned(self, columns: Collection[str]) -> Any:
        """Return the parsed reader schema with only these fields."""
        if set(columns) >= set(self.fields):
            return self.parsed
        defined: set[str] = set()
        fields = [
            {**field, "type": self._with_definitions(field["type"], defined)}
            for name, field in self.fields.items()
            if name in columns
        ]
        return fastavro.parse_schema({"type": "record", "name": self.parsed["name"], "fields": fields})

    def converters(self, columns: Sequence[str]) -> dict[str, Convert | None]:
        """Return the conversion to Arrow's input by field; None when the value needs none."""
        return {name: self._converter(self.fields[name]["type"]) for name in columns}

    def definition(self, kind: Any) -> Any:
        """Return the definition of a type: without null, and with names resolved."""
        if isinstance(kind, list):
            others = [member for member in kind if member != "null"]
            return self.definition(others[0]) if len(others) == 1 else kind
        return self._named.get(kind, kind) if isinstance(kind, str) else kind

    def is_json(self, kind: Any) -> bool:
        """Return whether a type is represented as a JSON string."""
        definition = self.definition(kind)
        return isinstance(definition, list) or (
            isinstance(definition, dict) and self._contains(definition, definition.get("name"), ())
        )

    def _contains(self, kind: Any, name: str | None, inside: tuple[str, ...]) -> bool:
        if not isinstance(kind, dict) or kind.get("type") != "record" or kind["name"] in inside:
            return False
        for field in kind["fields"]:
            for part in self._parts(field["type"]):
                if part.get("name") == name or self._contains(part, name, (*inside, kind["name"])):
                    return True
        return False

    def _parts(self, kind: Any) -> Iterator[dict[str, Any]]:
        for member in kind if isinstance(kind, list) else [kind]:
            definition = self._named.get(member, member) if isinstance(member, str) else member
            if isinstance(definition, dict) and definition["type"] in ("array", "map"):
                yield from self._parts(definition["items" if definition["type"] == "array" else "values"])
            elif isinstance(definition, dict):
                yield definition

    def _arrow(self, kind: Any) -> pa.DataType:
        definition = self.definition(kind)
        if self.is_json(definition):
            return pa.string()
        name, logical = _names_of(definition)
        if logical == "decimal":
            return pa.decimal128(definition["precision"], definition.get("scale", 0))
        match name:
            case "record":
                return pa.struct([(part["name"], self._arrow(part["type"])) for part in definition["fields"]])
            case "array":
                return pa.list_(self._arrow(definition["items"]))
            case "map":
                return pa.map_(pa.string(), self._arrow(definition["values"]))
        return _LOGICAL.get(f"{name}-{logical}", _PRIMITIVES[name])

    def _converter(self, kind: Any) -> Convert | None:
        definition = self.definition(kind)
        if self.is_json(definition):
            return lambda value: msgspec.json.encode(value).decode()
        name, logical = _names_of(definition)
        if name == "record":
            parts = {part["name"]: self._converter(part["type"]) for part in definition["fields"]}
            changed = {name: convert for name, convert in parts.items() if convert is not None}
            return (
                None
                if not changed
                else lambda value: {**value, **{n: apply_converter(c, value[n]) for n, c in changed.items()}}
            )
        if name in ("array", "map"):
            item = self._converter(definition["items" if name == "array" else "values"])
            if item is None:
                return None
            if name == "array":
                return lambda value: [apply_converter(item, element) for element in value]
            return lambda value: {key: apply_converter(item, element) for key, element in value.items()}
        return str if logical in ("uuid", "time-millis", "time-micros") else None

    def _with_definitions(self, kind: Any, defined: set[str]) -> Any:
        """Return a type with names defined at their first use, because the field that defined them may be pruned."""
        if isinstance(kind, list):
            return [self._with_definitions(member, defined) for member in kind]
        if isinstance(kind, str):
            if kind not in self._named or kind in defined:
                return kind
            kind = self._named[kind]
        if "name" in kind:
            if kind["name"] in defined:
                return kind["name"]
            defined.add(kind["name"])
        parts = {key: self._with_definitions(kind[key], defined) for key in ("items", "values") if key in kind}
        if "fields" in kind:
            parts["fields"] = [
                {**part, "type": self._with_definitions(part["type"], defined)} for part in kind["fields"]
            ]
        return {**{key: value for key, value in kind.items() if not key.startswith("__")}, **parts}


def _names_of(definition: Any) -> tuple[str, str | None]:
    return (definition, None) if isinstance(definition, str) else (definition["type"], definition.get("logicalType"))


def apply_converter(convert: Convert | None, value: Any) -> Any:
    """Convert a value; null stays null."""
    return value if convert is None or value is None else convert(value)


def rows_of(
    records: Sequence[dict[str, Any]], schema: pa.Schema, converters: dict[str, Convert | None]
) -> pa.RecordBatch:
    """Return a batch of records that fastavro has read."""
    columns = []
    for field in schema:
        convert, values = converters[field.name], [record[field.name] for record in records]
        columns.append(
            pa.array(values if convert is None else [apply_converter(convert, value) for value in values], field.type)
        )
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(records), pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def container_schema(file: BinaryIO) -> pa.Schema:
    """Return the columns of an Avro container file. Raises ProjectError `bad-avro-file` or `bad-avro-schema`."""
    return AvroSchema(_open_reader(file).writer_schema).arrow()


def read_container(
    file: BinaryIO, columns: Sequence[str] | None = None, batch_rows: int = 10_000
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an Avro container file in file order, with all columns or only those in `columns`."""
    start = file.tell()
    writer = AvroSchema(_open_reader(file).writer_schema)
    full = writer.arrow()
    schema = full if columns is None else pa.schema([full.field(name) for name in columns])
    converters = writer.converters(schema.names)
    file.seek(start)
    records = iter(fastavro.reader(file, reader_schema=writer.pruned(schema.names)))
    while batch := list(islice(records, batch_rows)):
        yield rows_of(batch, schema, converters)  # type: ignore[arg-type]


def _open_reader(file: BinaryIO) -> Any:
    try:
        return fastavro.reader(file)
    except (ValueError, EOFError, KeyError) as error:
        name = getattr(file, "name", "the file")
        raise ProjectError(
            "bad-avro-file", f"{name} is not an Avro container file: {error}", hint="is it another format?"
        ) from error
