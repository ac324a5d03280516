"""What tests of tables share: a copy of tables as plain mappings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.core.tables import UNCHANGED, CapturedBatch, TableShape


@dataclass
class Copy:
    """Keeps rows by key, as the contract of tables says."""

    shapes: dict[str, TableShape] = field(default_factory=dict)
    rows: dict[str, dict[tuple[Any, ...], list[Any]]] = field(default_factory=dict)
    coming: dict[str, set[tuple[Any, ...]]] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)
    """Every snapshot or emptying that ever began."""

    def take(self, taken: CapturedBatch) -> None:
        for name, shape in taken.shapes.items():
            added = len(shape.columns) - (len(self.shapes[name].columns) if name in self.shapes else 0)
            for row in self.rows.setdefault(name, {}).values():
                row.extend([None] * added)
            self.shapes[name] = shape
        for name in sorted(taken.begins):
            self.begun.append(name)
            self.coming[name] = set()
        for name, table in taken.rows.items():
            assert table.schema.equals(self.shapes[name].columns)
            for values in zip(*(column.to_pylist() for column in table.columns), strict=True):
                self._put(name, list(values))
        for change in taken.changes:
            if change.before is not None:
                old = self.rows[change.table].pop(change.before, None)
                self.coming.get(change.table, set()).discard(change.before)
            else:
                old = None
            if change.row is not None:
                self._put(change.table, change.row, old)
        for name in taken.ends:
            came = self.coming.pop(name)
            self.rows[name] = {key: row for key, row in self.rows[name].items() if key in came}

    def _put(self, name: str, row: Sequence[Any], old: Sequence[Any] | None = None) -> None:
        names = self.shapes[name].columns.names
        assert len(row) == len(names)
        key = tuple(row[names.index(column)] for column in self.shapes[name].key)
        had = self.rows[name].get(key, old)
        if UNCHANGED in [value for value in row if value is UNCHANGED]:
            assert had is not None, f"nothing to take an unchanged value from: {name} {key}"
        kept = [had[n] if value is UNCHANGED and had is not None else value for n, value in enumerate(row)]
        self.rows[name][key] = kept
        if name in self.coming:
            self.coming[name].add(key)

    def dicts(self, name: str) -> list[Mapping[str, Any]]:
        names = self.shapes[name].columns.names
        return [dict(zip(names, row, strict=True)) for _, row in sorted(self.rows[name].items())]
