"""Whether rows fit an existing table."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.schema import ddl_type

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


def require_columns(option: str, wanted: Sequence[str], columns: Sequence[str]) -> None:
    """Refuse an option that names a column the rows do not have."""
    for name in wanted:
        if name not in columns:
            hint = did_you_mean(name, columns, "columns")
            raise ProjectError("unknown-column", f"{option} names '{name}', which is not a column", hint=hint)


def require_fit(path: str, table: pa.Schema, rows: pa.Schema, may_add: bool) -> None:
    """Refuse rows whose columns the table cannot take."""
    for field in rows:
        if field.name in table.names:
            _require_type(path, field.name, table.field(field.name).type, field.type, may_add)
        elif not may_add:
            raise _added(path, field.name)


def _require_type(path: str, name: str, held: pa.DataType, given: pa.DataType, may_add: bool) -> None:
    if pa.types.is_struct(held) and pa.types.is_struct(given):
        parts = {part.name: part.type for part in held}
        for part in given:
            if part.name in parts:
                _require_type(path, f"{name}.{part.name}", parts[part.name], part.type, may_add)
            elif not may_add:
                raise _added(path, f"{name}.{part.name}")
    elif not _fits(held, given):
        raise ProjectError(
            "lake-type-changed",
            f"column '{name}' of lake table '{path}' is {ddl_type(held)}, and the rows have {ddl_type(given)}",
            hint=f"cast({name} as {ddl_type(held)}) in the flow's SQL, or write to a new table",
        )


def _fits(held: pa.DataType, given: pa.DataType) -> bool:
    if held in _INTEGERS and given in _INTEGERS:
        return _INTEGERS.index(given) <= _INTEGERS.index(held)
    return ddl_type(held) == ddl_type(given)


def _added(path: str, name: str) -> ProjectError:
    return ProjectError(
        "lake-column-added",
        f"the rows have a column '{name}' that lake table '{path}' does not have",
        hint="set schema_evolution: add on the sink, or leave the column out of the flow's SQL",
    )
