"""Rebuilding nested Arrow arrays part by part, which Arrow's own casts do only for plain types."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

Part = Callable[[pa.Array, pa.Field], pa.Array]


def rebuild(array: pa.Array, shape: pa.DataType, part: Part) -> pa.Array:
    """A nested array with the parts of `shape`, each converted by `part`."""
    if array.offset:  # the offsets of a slice do not start at its values
        array = pa.concat_arrays([array])
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(shape):
        children = array.flatten() if mask is not None else [array.field(i) for i in range(array.type.num_fields)]
        parts = [part(children[array.type.get_field_index(field.name)], field) for field in shape]
        fields = [pa.field(field.name, made.type) for field, made in zip(shape, parts, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=mask)
    if pa.types.is_map(shape):
        keys = part(array.keys, pa.field("key", shape.key_type))
        items = part(array.items, pa.field("value", shape.item_type))
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=pa.map_(keys.type, items.type), mask=mask)
    values = part(array.values, pa.field("item", shape.value_type))
    return pa.ListArray.from_arrays(array.offsets, values, type=pa.list_(values.type), mask=mask)


def conform(array: pa.Array, target: pa.DataType, leaf: Callable[[pa.Array, pa.DataType], pa.Array]) -> pa.Array:
    """The array as `target`: nested parts by name and position, plain values by `leaf`."""
    if array.type == target:
        return array
    if is_nested(target):
        return rebuild(array, target, lambda part, field: conform(part, field.type, leaf))
    return leaf(array, target)


def is_nested(kind: pa.DataType) -> bool:
    """Whether a type is a struct, a map or a list."""
    return bool(pa.types.is_nested(kind))


def batch_of(columns: list[pa.Array], schema: pa.Schema, length: int) -> pa.RecordBatch:
    """A batch that keeps its number of rows even when it has no columns."""
    if columns:
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    return pa.RecordBatch.from_struct_array(pa.array([{}] * length, pa.struct([])))
