"""JSON objects to Arrow columns, by msgspec: only the wanted keys are made into objects, the others are skipped."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Sequence
from decimal import Decimal
from functools import cached_property
from operator import attrgetter
from typing import Annotated, Any, Literal, Optional, Required, TypedDict

import msgspec
import pyarrow as pa

from headrace.core.format import Bad, Decoded, Decoder
from headrace.formats._arrays import batch_of, conform
from headrace.formats._batches import rows_around_bad
from headrace.formats._timestamps import parse_timestamps
from headrace.formats.json.schema import allowed, is_required

# RecursionError: nesting deeper than the interpreter allows; TypeError: a null value
_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError)
_FLOAT32_MAX = 3.4028235677973366e38


class JsonDecoder(Decoder):
    """Decodes the wanted keys of JSON objects."""

    def __init__(self, schema: pa.Schema, fields: Sequence[pa.Field], required: Collection[str] = ()) -> None:
        """`fields`: the columns of `schema` with what must hold for them; `required`: other keys there must be."""
        self.schema = schema
        self._fields = list(fields)
        self._required = sorted(required)

    def __getstate__(self) -> dict[str, Any]:
        return {"schema": self.schema, "_fields": self._fields, "_required": self._required}

    @cached_property
    def _parse(self) -> Callable[[bytes], Any]:
        return msgspec.json.Decoder(_struct(self._fields, self._required)).decode

    def decode(self, values: pa.Array) -> Decoded:
        """Decode UTF-8 JSON objects. Of a repeated key the last value is used."""
        records = values.to_pylist()
        try:
            objects = list(map(self._parse, records))
        except _ERRORS:
            return self._decode_one_by_one(records)
        return rows_around_bad(objects, self._rows, range(len(records)), ())

    def _decode_one_by_one(self, records: Sequence[bytes | None]) -> Decoded:
        parse, objects, positions, bad = self._parse, [], [], []
        for index, record in enumerate(records):
            if not record:
                bad.append(Bad(index, "empty", "the record has no value"))
                continue
            try:
                objects.append(parse(record))
                positions.append(index)
            except _ERRORS as error:
                bad.append(Bad(index, _reason(error), str(error)[:500]))
        return rows_around_bad(objects, self._rows, positions, bad)

    def _rows(self, objects: Sequence[Any]) -> pa.RecordBatch:
        columns = []
        for number, field in enumerate(self.schema):
            try:
                array = pa.array(list(map(attrgetter(f"f{number}"), objects)), wire_type(field.type))
                columns.append(conform(array, field.type, parse_timestamps))
            except (
                pa.ArrowInvalid,
                OverflowError,
            ) as error:  # a text that is not a timestamp, a decimal that does not fit
                raise ValueError(f"column '{field.name}': {str(error).split(': expected')[0]}") from error
        return batch_of(columns, self.schema, len(objects))


def _reason(error: Exception) -> str:
    if isinstance(error, msgspec.ValidationError):
        return "missing-field" if "missing required field" in str(error) else "wrong-type"
    return "malformed"


def wire_type(kind: pa.DataType) -> pa.DataType:
    """The type that values have before timestamps are parsed."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, wire_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, wire_type(kind.item_type))
    return pa.list_(wire_type(kind.value_type)) if pa.types.is_list(kind) else kind


def _struct(fields: Sequence[pa.Field], required: Sequence[str]) -> type[msgspec.Struct]:
    """A class with fields f0, f1, …: keys need not be Python names."""
    members: list[Any] = []
    for number, field in enumerate(fields):
        kind = python_type(field)
        members.append((f"f{number}", kind) if is_required(field) else (f"f{number}", kind, None))
    keys = {f"f{number}": field.name for number, field in enumerate(fields)}
    for number, name in enumerate(required):
        members.append((f"r{number}", msgspec.Raw))
        keys[f"r{number}"] = name
    return msgspec.defstruct("Record", members, rename=keys, gc=False, kw_only=True)


def python_type(field: pa.Field) -> Any:
    """The type with constraints that msgspec validates."""
    kind = _value_type(field)
    return Optional[kind] if field.nullable else kind  # noqa: UP045


def _value_type(field: pa.Field) -> Any:
    kind = field.type
    texts = allowed(field)
    if texts is not None:
        return Literal[texts]
    if pa.types.is_integer(kind):
        bound = 2 ** (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)]
    if pa.types.is_float32(kind):
        return Annotated[float, msgspec.Meta(ge=-_FLOAT32_MAX, le=_FLOAT32_MAX)]
    if pa.types.is_struct(kind):
        parts = {part.name: Required[python_type(part)] if is_required(part) else python_type(part) for part in kind}
        return TypedDict("Part", parts, total=False)  # type: ignore[operator]
    if pa.types.is_map(kind):
        return dict[_value_type(kind.key_field), python_type(kind.item_field)]  # type: ignore[misc]
    if pa.types.is_list(kind):
        return list[python_type(kind.value_field)]  # type: ignore[misc]
    return _PLAIN[kind.id]


_PLAIN: dict[int, type] = {
    pa.bool_().id: bool,
    pa.float64().id: float,
    pa.string().id: str,
    pa.binary().id: bytes,
    pa.date32().id: datetime.date,
    pa.timestamp("us").id: str,
    pa.decimal128(1).id: Decimal,
}
