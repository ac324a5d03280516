"""The schema of JSON records, inferred from a sample."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import msgspec
import pyarrow as pa

from headrace.core.errors import ProjectError
from headrace.core.schema import TIMESTAMP, ddl_type
from headrace.formats._timestamps import is_timestamp

_BIG = pa.decimal128(38, 0)
_NUMBERS = (pa.int64(), _BIG, pa.float64())  # each can hold the values of those before


def infer_schema(sample: Sequence[bytes]) -> pa.Schema:
    """The union of the columns of the valid records in a sample."""
    records = [record for record in map(_read, sample) if isinstance(record, dict)]
    inferred = reduce(lambda known, record: _merged(known, _type_of(record), ""), records, pa.struct([]))
    if not inferred.num_fields:
        raise ProjectError(
            "nothing-to-infer",
            f"no columns can be inferred from {len(sample)} sampled records"
            if sample
            else "there are no records to infer the columns from",
            hint="write the columns: `columns: id bigint, at timestamp, …`",
        )
    return pa.schema([pa.field(field.name, _settled(field.type)) for field in inferred])


def _read(record: bytes) -> Any:
    try:
        return msgspec.json.decode(record)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _type_of(value: Any) -> pa.DataType:
    match value:
        case None:
            return pa.null()
        case bool():
            return pa.bool_()
        case int():
            return pa.int64() if -(2**63) <= value < 2**63 else _BIG if abs(value) < 10**38 else pa.float64()
        case float():
            return pa.float64()
        case str():
            return TIMESTAMP if is_timestamp(value) else pa.string()
        case list():
            return pa.list_(reduce(lambda known, item: _merged(known, _type_of(item), "[]"), value, pa.null()))
    return pa.struct([(name, _type_of(part)) for name, part in value.items()])


def _merged(first: pa.DataType, second: pa.DataType, path: str) -> pa.DataType:
    if first == second or pa.types.is_null(second):
        return first
    if pa.types.is_null(first):
        return second
    if first in _NUMBERS and second in _NUMBERS:
        return max(first, second, key=_NUMBERS.index)
    if {first, second} == {TIMESTAMP, pa.string()}:
        return pa.string()
    if pa.types.is_list(first) and pa.types.is_list(second):
        return pa.list_(_merged(first.value_type, second.value_type, f"{path}[]"))
    if pa.types.is_struct(first) and pa.types.is_struct(second):
        return _merged_structs(first, second, path)
    raise ProjectError(
        "mixed-types",
        f"'{path.lstrip('.')}' is {_name(first)} in some sampled records and {_name(second)} in others",
        hint="write the columns: `columns: id bigint, at timestamp, …`",
    )


def _merged_structs(first: pa.StructType, second: pa.StructType, path: str) -> pa.DataType:
    parts = {field.name: field.type for field in first}
    for field in second:
        parts[field.name] = _merged(parts.get(field.name, pa.null()), field.type, f"{path}.{field.name}")
    return pa.struct(list(parts.items()))


def _name(kind: pa.DataType) -> str:
    return "an object" if pa.types.is_struct(kind) else "an array" if pa.types.is_list(kind) else ddl_type(kind)


def _settled(kind: pa.DataType) -> pa.DataType:
    """The type, with string for values that were always null and a map for objects that were always empty."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_settled(kind.value_type))
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            return pa.map_(pa.string(), pa.string())
        return pa.struct([(field.name, _settled(field.type)) for field in kind])
    return kind
