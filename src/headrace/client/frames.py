"""Rows as JSON made into typed Arrow tables and data frames. Both libraries are loaded when asked for."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


@dataclass(frozen=True)
class Answer:
    """The answer to a question in SQL."""

    columns: dict[str, str]
    """Their names and types."""
    values: list[list[Any]]
    truncated: bool
    """Whether there were more rows than the server gives."""

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(zip(self.columns, row, strict=True)) for row in self.values)

    def to_arrow(self) -> pa.Table:
        """With the types that the server names."""
        return table(self.columns, list(zip(*self.values, strict=True)) if self.values else [()] * len(self.columns))

    def to_pandas(self) -> pd.DataFrame:
        """As a data frame."""
        return self.to_arrow().to_pandas()


def rows_table(columns: dict[str, str], rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Rows of an endpoint as a table."""
    return table(columns, [[row.get(name) for row in rows] for name in columns])


def table(columns: dict[str, str], values: Sequence[Sequence[Any]]) -> pa.Table:
    """Columns of JSON values as a table with these types."""
    import pyarrow as pa

    from headrace.core.schema import from_ddl, quoted

    schema = from_ddl(", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items()))
    arrays = [_array(column, field.type) for column, field in zip(values, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    convert = _converter(kind)
    return pa.array(values if convert is None else [None if v is None else convert(v) for v in values], type=kind)


def _converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """What a JSON value of this type has to go through; None: it is right as it is."""
    import pyarrow as pa

    types = pa.types
    if types.is_floating(kind):
        # JSON has no NaN and no infinities: these come as text
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
    import pyarrow as pa

    if pa.types.is_list(kind):
        return _of_list(_converter(kind.value_type) or _same)
    if pa.types.is_struct(kind):
        return _of_struct({field.name: _converter(field.type) or _same for field in kind})
    if pa.types.is_map(kind):
        # JSON's keys are text, whatever the map's are
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
    return lambda value: [(key(name), None if one is None else item(one)) for name, one in value.items()]
