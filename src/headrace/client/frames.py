"""Converts JSON rows to typed Arrow tables and data frames. Both libraries are loaded at first use."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from headrace.core.runtime.lazy import lazy_modules

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from headrace.core import schema as schemas
else:
    pa, schemas = lazy_modules("pyarrow", "headrace.core.schema")


@dataclass(frozen=True)
class Answer:
    """The result of an SQL query."""

    columns: dict[str, str]
    """Names and types of the columns."""
    values: list[list[Any]]
    truncated: bool
    """Whether the query has more rows than the server returns."""

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(zip(self.columns, row, strict=True)) for row in self.values)

    def to_arrow(self) -> pa.Table:
        """The result as a table with the types of the server."""
        return table(self.columns, list(zip(*self.values, strict=True)) if self.values else [()] * len(self.columns))

    def to_pandas(self) -> pd.DataFrame:
        return self.to_arrow().to_pandas()


def rows_table(columns: dict[str, str], rows: Sequence[dict[str, Any]]) -> pa.Table:
    return table(columns, [[row.get(name) for row in rows] for name in columns])


def table(columns: dict[str, str], values: Sequence[Sequence[Any]]) -> pa.Table:
    """Columns of JSON values as a table with these types."""
    schema = schemas.from_ddl(", ".join(f"{schemas.quoted(name)} {kind}" for name, kind in columns.items()))
    arrays = [_array(column, field.type) for column, field in zip(values, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    convert = _converter(kind)
    return pa.array(values if convert is None else [None if v is None else convert(v) for v in values], type=kind)


def _converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Converts a JSON value of this type; None: no conversion is needed."""
    types = pa.types
    if types.is_floating(kind):
        # JSON has no NaN and no infinities: the server sends them as text
        return float
    if types.is_decimal(kind):
        return Decimal
    if types.is_timestamp(kind):
        return datetime.fromisoformat
    if types.is_date(kind):
        return date.fromisoformat
    if types.is_binary(kind):
        return base64.b64decode
    return _nested(kind)


def _nested(kind: pa.DataType) -> Callable[[Any], Any] | None:
    if pa.types.is_list(kind):
        return _of_list(_converter(kind.value_type) or _same)
    if pa.types.is_struct(kind):
        return _of_struct({field.name: _converter(field.type) or _same for field in kind})
    if pa.types.is_map(kind):
        # keys of JSON objects are text, whatever the type of the map's keys
        key = int if pa.types.is_integer(kind.key_type) else _converter(kind.key_type) or _same
        return _of_map(key, _converter(kind.item_type) or _same)
    return None


def _same(value: Any) -> Any:
    return value


def _of_list(item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: [None if value is None else item(value) for value in values]


def _of_struct(fields: dict[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    return lambda value: {
        name: None if value.get(name) is None else convert(value[name]) for name, convert in fields.items()
    }


def _of_map(key: Callable[[Any], Any], item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: [(key(name), None if inner is None else item(inner)) for name, inner in value.items()]
