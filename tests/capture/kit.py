"""A source of tables that says what a test tells it to."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from headrace.core.context import Context
from headrace.core.positions import Position
from headrace.core.schema import from_ddl
from headrace.core.tables import CapturedBatch, TableReader, TableShape, TableSource

Said = CapturedBatch | Exception


class TestReader(TableReader):
    """Gives what is put into its queue; an error is raised."""

    __test__ = False

    def __init__(self, after: Position | None, shapes: Mapping[str, TableShape], said: queue.Queue[Said]) -> None:
        self.after, self.shapes = after, dict(shapes)
        self.confirmed: list[Position] = []
        self.closed = False
        self._said = said

    def read(self, seconds: float) -> CapturedBatch | None:
        try:
            said = self._said.get(timeout=seconds) if seconds else self._said.get_nowait()
        except queue.Empty:
            return None
        if isinstance(said, Exception):
            raise said
        return said

    def confirm(self, position: Position) -> None:
        self.confirmed.append(position)

    def lag(self) -> int | None:
        return self._said.qsize()

    def close(self) -> None:
        self.closed = True


class TestTable(TableSource):
    """All tests of this process share what is said."""

    __test__ = False
    type: Literal["told"] = "told"
    columns: str = "id bigint, name string"
    own_key: tuple[str, ...] = ("id",)
    of: str = "told"
    said: ClassVar[queue.Queue[Said]] = queue.Queue()
    readers: ClassVar[list[TestReader]] = []

    @property
    def group(self) -> str:
        return self.of

    def shape(self, context: Context) -> TableShape:
        return TableShape(from_ddl(self.columns), self.own_key)

    @classmethod
    def reader(
        cls, tables: Mapping[str, Any], shapes: Mapping[str, TableShape], after: Position | None, context: Context
    ) -> TableReader:
        made = TestReader(after, shapes, cls.said)
        cls.readers.append(made)
        return made
