"""A table in memory for tests: changes are checked and become weighted rows, as in the log."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.schema import ddl_type, from_ddl, quoted
from headrace.core.tables import TableShape

Row = tuple[Any, ...]
_IMAGES = {"I": 1, "U": 2, "D": 1}
"""The number of rows in a change."""


class TestTable:
    """The rows of a table. With a key, an insert of an existing key replaces its row, and a delete of a missing key
    does nothing, as with every source. Without a key the table is a bag.
    """

    __test__ = False  # not a test class for pytest

    def __init__(self, name: str, about: Mapping[str, Any]) -> None:
        self.name = name
        self.shape = _shape(name, about)
        self._places = [self.shape.columns.names.index(column) for column in self.shape.key]
        self.rows: Counter[Row] = Counter()
        self._by_key: dict[Row, Row] = {}

    def copy(self) -> TestTable:
        copy = TestTable.__new__(TestTable)
        copy.name, copy.shape, copy._places = self.name, self.shape, self._places
        copy.rows, copy._by_key = Counter(self.rows), dict(self._by_key)
        return copy

    def change(self, changes: Sequence[tuple[Any, ...]]) -> list[Row]:
        """Apply changes in order, e.g. `("U", table, old, new)`; returns them as weighted rows."""
        images_of_changes = [[self._values(row) for row in _images(change)] for change in changes]
        typed = iter(rows_of(self.arrow([row for images in images_of_changes for row in images], self.shape.columns)))
        weighted: list[Row] = []
        for (op, *_), images in zip(changes, images_of_changes, strict=True):
            old, new = [next(typed) for _ in images] if op == "U" else (next(typed), None)
            weighted += self._put(old) if op == "I" else self._remove(old)
            weighted += self._put(new) if new is not None else []
        return weighted

    def arrow(self, rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
        """Rows as an Arrow table. ProjectError `table-value`: a value does not fit its column."""
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
        return pa.table([self._array(c, f) for c, f in zip(columns, schema, strict=True)], schema=schema)

    def _array(self, values: Sequence[Any], field: pa.Field) -> pa.Array:
        try:
            return pa.array(values, field.type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise ProjectError(
                "table-value",
                f"column '{field.name}' of table '{self.name}' is {ddl_type(field.type)}: {str(error)[:200]}",
                hint="decimals are Decimal, dates and times are date and datetime, structs are dicts",
            ) from error

    def _values(self, row: Any) -> Row:
        names = self.shape.columns.names
        if isinstance(row, Mapping):
            unknown = sorted(set(row) - set(names))
            if unknown:
                hint = did_you_mean(unknown[0], names, "columns")
                raise ProjectError("unknown-column", f"table '{self.name}' has no column '{unknown[0]}'", hint=hint)
            return tuple(row.get(name) for name in names)
        if isinstance(row, str | bytes) or not isinstance(row, Sequence) or len(row) != len(names):
            message = f"{row!r} is not a row of table '{self.name}', which has the columns {', '.join(names)}"
            raise ProjectError("table-row", message, hint="give a value for each column in this order, or a dict")
        return tuple(row)

    def _put(self, row: Row) -> Iterator[Row]:
        if self._places:
            yield from self._remove(row)
            self._by_key[self._key(row)] = row
        self.rows[row] += 1
        yield (*row, 1)

    def _remove(self, row: Row) -> Iterator[Row]:
        if self._places:
            old = self._by_key.pop(self._key(row), None)
            if old is None:
                return
            row = old
        elif not self.rows[row]:
            message = f"table '{self.name}' has no row {row}"
            raise ProjectError("table-row", message, hint="insert it first, or declare a `key`: then the key is enough")
        self.rows[row] -= 1
        yield (*row, -1)

    def _key(self, row: Row) -> Row:
        key = tuple(row[place] for place in self._places)
        if None in key:
            message = f"table '{self.name}' has the key ({', '.join(self.shape.key)}), which is null in {row}"
            raise ProjectError("table-value", message, hint="set the key of the row, or remove the key of the table")
        return key


def _images(change: tuple[Any, ...]) -> tuple[Any, ...]:
    op, _, *images = change
    if len(images) != _IMAGES.get(op):
        raise not_a_change(change)
    return tuple(images)


def not_a_change(change: Any) -> ProjectError:
    hint = '("I", table, row), ("U", table, old row, new row) or ("D", table, row)'
    return ProjectError("table-row", f"{change!r} is not a change", hint=hint)


def _shape(name: str, about: Mapping[str, Any]) -> TableShape:
    columns = about.get("columns") if isinstance(about, Mapping) else None
    if not isinstance(columns, Mapping) or not columns or set(about) - {"key", "columns"}:
        message = f"table '{name}' needs columns, and optionally a key: {about!r}"
        raise ProjectError("bad-schema", message, hint='{"key": ["id"], "columns": {"id": "bigint", "v": "string"}}')
    schema = from_ddl(", ".join(f"{quoted(column)} {kind}" for column, kind in columns.items()))
    key = about.get("key") or ()
    for column in (key,) if isinstance(key, str) else key:
        if column not in schema.names:
            hint = did_you_mean(column, schema.names, "columns")
            raise ProjectError("unknown-column", f"key: table '{name}' has no column '{column}'", hint=hint)
    return TableShape(schema, (key,) if isinstance(key, str) else tuple(key))


def rows_of(table: pa.Table) -> list[Row]:
    """The rows of a table as tuples of hashable Python values."""
    columns = [[frozen(value) for value in column.to_pylist()] for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else []


def frozen(value: Any) -> Any:
    """A hashable value: all NaN are equal, as in SQL; arrays and structs become tuples."""
    if isinstance(value, float) and math.isnan(value):
        return math.nan
    if isinstance(value, list | tuple):
        return tuple(frozen(item) for item in value)
    return tuple(frozen(item) for item in value.values()) if isinstance(value, dict) else value
