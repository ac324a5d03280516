"""What readers tell, applied to plain dicts: the model that tables are compared with."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from headrace.core.positions import Position
from headrace.core.tables import UNCHANGED, CapturedBatch, RowChange, TableReader, TableShape


class Applied:
    """Tables as rows by key. A captured batch is applied in order: shapes, begins, rows, changes, ends."""

    def __init__(self, **shapes: TableShape) -> None:
        self.shapes = dict(shapes)
        self.rows: dict[str, dict[tuple[Any, ...], tuple[Any, ...]]] = {name: {} for name in shapes}
        self.complete: set[str] = set()
        self.position: Position | None = None
        self.taken: list[CapturedBatch] = []
        self._came: dict[str, set[tuple[Any, ...]]] = {}

    def take(self, taken: CapturedBatch) -> None:
        self.taken.append(taken)
        self.position = json.loads(json.dumps(taken.position))
        for name, shape in taken.shapes.items():
            assert shape.columns.names[: len(self.shapes[name].columns)] == self.shapes[name].columns.names
            added = len(shape.columns) - len(self.shapes[name].columns)
            self.shapes[name] = shape
            self.rows[name] = {key: (*row, *[None] * added) for key, row in self.rows[name].items()}
        for name in taken.begins:
            self._came[name] = set()
        for name, table in taken.rows.items():
            assert table.schema == self.shapes[name].columns
            for row in table.to_pylist():
                self._put(name, tuple(row.values()))
        for change in taken.changes:
            self._change(change)
        for name in taken.ends:
            self.rows[name] = {key: row for key, row in self.rows[name].items() if key in self._came[name]}
            del self._came[name]
            self.complete.add(name)

    def _change(self, change: RowChange) -> None:
        rows = self.rows[change.table]
        old = rows.pop(change.before, None) if change.before is not None else None
        if change.row is None:
            return
        old = old or rows.get(self._key(change.table, change.row))
        filled = [old[n] if value is UNCHANGED and old else value for n, value in enumerate(change.row)]
        assert UNCHANGED not in filled, "nothing to take it from"
        self._put(change.table, tuple(filled))

    def _put(self, name: str, row: tuple[Any, ...]) -> None:
        assert len(row) == len(self.shapes[name].columns)
        self.rows[name][self._key(name, row)] = row
        self._came.get(name, set()).add(self._key(name, row))

    def _key(self, name: str, row: Any) -> tuple[Any, ...]:
        shape = self.shapes[name]
        return tuple(row[shape.columns.names.index(column)] for column in shape.key)

    def table(self, name: str) -> list[dict[str, Any]]:
        """The rows as they are now, by key."""
        names = self.shapes[name].columns.names
        return [dict(zip(names, row, strict=True)) for _, row in sorted(self.rows[name].items())]

    def follow(self, reader: TableReader, until: Callable[[], bool], seconds: float = 20.0) -> None:
        """Take what comes until something holds."""
        deadline = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < deadline, "it did not come"
            taken = reader.read(0.2)
            if taken is not None:
                self.take(taken)
                reader.confirm(taken.position)
