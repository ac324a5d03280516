"""Avro schemas as Arrow schemas, and Avro container files as Arrow batches.

There is no Avro library that speaks Arrow: fastavro makes Python objects of records, which is what costs.
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
    """One record schema. Names inside it are resolved as Avro does: a definition is known from where it stands on."""

    def __init__(self, schema: Any) -> None:
        self._named: dict[str, dict[str, Any]] = {}
        try:
            self.parsed: Any = fastavro.parse_schema(schema, named_schemas=self._named)
        except Exception as error:  # fastavro raises TypeError, KeyError and errors of its own for one fault or another
            raise ProjectError(
                "bad-avro-schema", f"not an Avro schema: {error!r}"[:500], hint="see the Avro specification"
            ) from error
        if not isinstance(self.parsed, dict) or self.parsed.get("type") != "record":
            raise ProjectError(
                "bad-avro-schema", "the Avro schema is not a record", hint="records have a `type: record` schema"
            )

    @property
    def fields(self) -> dict[str, dict[str, Any]]:
        """The fields of the record by name."""
        return {field["name"]: field for field in self.parsed["fields"]}

    def arrow(self) -> pa.Schema:
        """All columns. Unions of several types and records that contain themselves are JSON strings."""
        return pa.schema([(name, self._arrow(field["type"])) for name, field in self.fields.items()])

    def pruned(self, wanted: Collection[str]) -> Any:
        """A reader's schema with the wanted fields only, parsed."""
        if set(wanted) >= set(self.fields):
            return self.parsed
        defined: set[str] = set()
        kept = [
            {**field, "type": self._spelled(field["type"], defined)}
            for name, field in self.fields.items()
            if name in wanted
        ]
        return fastavro.parse_schema({"type": "record", "name": self.parsed["name"], "fields": kept})

    def converters(self, wanted: Sequence[str]) -> dict[str, Convert | None]:
        """What is to be done with the value of each field before Arrow takes it; None: nothing."""
        return {name: self._converter(self.fields[name]["type"]) for name in wanted}

    def real(self, kind: Any) -> Any:
        """The type without a null beside it, and with names looked up."""
        if isinstance(kind, list):
            others = [one for one in kind if one != "null"]
            return self.real(others[0]) if len(others) == 1 else kind
        return self._named.get(kind, kind) if isinstance(kind, str) else kind

    def is_json(self, kind: Any) -> bool:
        """Whether a type has no columns of its own."""
        real = self.real(kind)
        return isinstance(real, list) or (isinstance(real, dict) and self._contains(real, real.get("name"), ()))

    def _contains(self, kind: Any, name: str | None, inside: tuple[str, ...]) -> bool:
        if not isinstance(kind, dict) or kind.get("type") != "record" or kind["name"] in inside:
            return False
        for field in kind["fields"]:
            for part in self._parts(field["type"]):
                if part.get("name") == name or self._contains(part, name, (*inside, kind["name"])):
                    return True
        return False

    def _parts(self, kind: Any) -> Iterator[dict[str, Any]]:
        for one in kind if isinstance(kind, list) else [kind]:
            real = self._named.get(one, one) if isinstance(one, str) else one
            if isinstance(real, dict) and real["type"] in ("array", "map"):
                yield from self._parts(real["items" if real["type"] == "array" else "values"])
            elif isinstance(real, dict):
                yield real

    def _arrow(self, kind: Any) -> pa.DataType:
        real = self.real(kind)
        if self.is_json(real):
            return pa.string()
        name, logical = _names_of(real)
        if logical == "decimal":
            return pa.decimal128(real["precision"], real.get("scale", 0))
        match name:
            case "record":
                return pa.struct([(part["name"], self._arrow(part["type"])) for part in real["fields"]])
            case "array":
                return pa.list_(self._arrow(real["items"]))
            case "map":
                return pa.map_(pa.string(), self._arrow(real["values"]))
        return _LOGICAL.get(f"{name}-{logical}", _PRIMITIVES[name])

    def _converter(self, kind: Any) -> Convert | None:
        real = self.real(kind)
        if self.is_json(real):
            return lambda value: msgspec.json.encode(value).decode()
        name, logical = _names_of(real)
        if name == "record":
            parts = {part["name"]: self._converter(part["type"]) for part in real["fields"]}
            changed = {name: convert for name, convert in parts.items() if convert is not None}
            return (
                None
                if not changed
                else lambda value: {**value, **{n: applied(c, value[n]) for n, c in changed.items()}}
            )
        if name in ("array", "map"):
            item = self._converter(real["items" if name == "array" else "values"])
            if item is None:
                return None
            if name == "array":
                return lambda value: [applied(item, one) for one in value]
            return lambda value: {key: applied(item, one) for key, one in value.items()}
        return str if logical in ("uuid", "time-millis", "time-micros") else None

    def _spelled(self, kind: Any, defined: set[str]) -> Any:
        """A type whose names are defined where they are first used: the place of their definition may be gone."""
        if isinstance(kind, list):
            return [self._spelled(one, defined) for one in kind]
        if isinstance(kind, str):
            if kind not in self._named or kind in defined:
                return kind
            kind = self._named[kind]
        if "name" in kind:
            if kind["name"] in defined:
                return kind["name"]
            defined.add(kind["name"])
        parts = {key: self._spelled(kind[key], defined) for key in ("items", "values") if key in kind}
        if "fields" in kind:
            parts["fields"] = [{**part, "type": self._spelled(part["type"], defined)} for part in kind["fields"]]
        return {**{key: value for key, value in kind.items() if not key.startswith("__")}, **parts}


def _names_of(real: Any) -> tuple[str, str | None]:
    return (real, None) if isinstance(real, str) else (real["type"], real.get("logicalType"))


def applied(convert: Convert | None, value: Any) -> Any:
    """A converted value; null stays null."""
    return value if convert is None or value is None else convert(value)


def rows_of(
    records: Sequence[dict[str, Any]], schema: pa.Schema, converters: dict[str, Convert | None]
) -> pa.RecordBatch:
    """Records that fastavro read, as a batch."""
    columns = []
    for field in schema:
        convert, values = converters[field.name], [record[field.name] for record in records]
        columns.append(
            pa.array(values if convert is None else [applied(convert, value) for value in values], field.type)
        )
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(records), pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def container_schema(file: BinaryIO) -> pa.Schema:
    """The columns of an Avro container file."""
    return AvroSchema(_opened(file).writer_schema).arrow()


def read_container(
    file: BinaryIO, columns: Sequence[str] | None = None, batch_rows: int = 10_000
) -> Iterator[pa.RecordBatch]:
    """The rows of an Avro container file, in its order; of the wanted columns only."""
    start = file.tell()
    writer = AvroSchema(_opened(file).writer_schema)
    full = writer.arrow()
    schema = full if columns is None else pa.schema([full.field(name) for name in columns])
    converters = writer.converters(schema.names)
    file.seek(start)
    records = iter(fastavro.reader(file, reader_schema=writer.pruned(schema.names)))
    while batch := list(islice(records, batch_rows)):
        yield rows_of(batch, schema, converters)  # type: ignore[arg-type]


def _opened(file: BinaryIO) -> Any:
    try:
        return fastavro.reader(file)
    except (ValueError, EOFError, KeyError) as error:
        name = getattr(file, "name", "the file")
        raise ProjectError(
            "bad-avro-file", f"{name} is not an Avro container file: {error}", hint="is it another format?"
        ) from error
