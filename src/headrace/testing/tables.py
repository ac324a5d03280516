"""Tables fed by a test, in the logs that views read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.core.endpoints import OLD, OP, Op
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.tables import WEIGHT, TableShape
from headrace.log.tables import table_log
from headrace.plan.view_planning import known_shape
from headrace.project.loader import Project

Row = Mapping[str, Any]


class ListTables:
    """The tables of a project. Each call is one commit."""

    def __init__(self, original: Project, project: Project) -> None:
        self._project = project
        self._rows: dict[str, dict[tuple[Any, ...], Row]] = {name: {} for name in project.spec.tables}
        self._original = original
        shapes = {name: known_shape(original, name, original.spec.tables[name]) for name in project.spec.tables}
        self._shapes = {name: shape for name, shape in shapes.items() if shape is not None}
        for group in {project.spec.tables[name].source.group for name in self._shapes}:
            self._commit(group, {})

    def feed(self, table: str, rows: Sequence[Row]) -> None:
        """Insert rows, or update those of the same key."""
        self._change(table, [(self._complete(table, row), True) for row in rows])

    def delete(self, table: str, rows: Sequence[Row]) -> None:
        self._change(table, [(row, False) for row in rows])

    def _change(self, table: str, changes: Sequence[tuple[Row, bool]]) -> None:
        weighted: list[dict[str, Any]] = []
        for row, stays in changes:
            key = tuple(row[name] for name in self._shape(table).key)
            old = self._rows[table].pop(key, None)
            weighted += [{**old, WEIGHT: -1}] if old is not None else []
            if stays:
                self._rows[table][key] = row
                weighted.append({**row, WEIGHT: 1})
        self._commit(self._project.spec.tables[table].source.group, {table: weighted})

    def _commit(self, group: str, rows: Mapping[str, Sequence[Row]]) -> None:
        group_shapes = {
            name: shape for name, shape in self._shapes.items() if self._project.spec.tables[name].source.group == group
        }
        changes = {
            name: pa.Table.from_pylist(list(table_rows), group_shapes[name].weighted)
            for name, table_rows in rows.items()
        }
        log = table_log(self._project.context, group)
        log.commit(changes, {"commit": log.end() + 1}, group_shapes, None, tuple(group_shapes))

    def _shape(self, table: str) -> TableShape:
        if table not in self._shapes:
            raise ProjectError(
                "table-not-captured",
                f"the columns of table '{table}' are not known yet",
                where=self._original.origin("tables", table),
                hint="run the project once, so that the table is captured",
            )
        return self._shapes[table]

    def _complete(self, table: str, row: Row) -> Row:
        names = self._shape(table).columns.names
        for name in row:
            if name not in names:
                hint = did_you_mean(name, names, "columns")
                raise ProjectError("unknown-column", f"table '{table}' has no column '{name}'", hint=hint)
        typed = pa.Table.from_pylist([{name: row.get(name) for name in names}], self._shape(table).columns)
        return dict(typed.to_pylist()[0])


def kept_rows(changes: Sequence[Row], key: Sequence[str]) -> list[dict[str, Any]]:
    """The current rows of a view after its changes."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for change in changes:
        row = {name: value for name, value in change.items() if name not in (OP, OLD)}
        key_values = tuple(row[name] for name in key)
        rows.pop(key_values, None)
        if change[OP] != Op.DELETE:
            rows[key_values] = row
    return list(rows.values())
