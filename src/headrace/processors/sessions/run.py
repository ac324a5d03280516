"""The session of a key: passes rows in order to an object of the project, and keeps its memory. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from headrace.core.errors import ProjectError
from headrace.processors._steps.project_class import ProjectClass

METHODS = {
    "add": "def add(self, row: dict[str, Any]) -> list[dict[str, Any]]",
    "finish": "def finish(self) -> list[dict[str, Any]]",
    "remember": "def remember(self) -> Any",
    "recall": "def recall(self, memory: Any) -> None",
}
"""The signatures of the methods that a class must have."""

Row = dict[str, Any]
Timed = tuple[int, Row]
"""A row and its time in microseconds."""


@dataclass(frozen=True)
class OpenSession:
    """A session between two batches."""

    last: int
    """The time of its last row."""
    rows: int
    """The number of rows since it was last finished."""
    finished: bool
    memory: bytes
    """The memory of the object, as JSON."""


@dataclass(frozen=True)
class Rules:
    """When a session ends, and how rows of the same time are ordered. Times in microseconds."""

    gap: int
    keep: int = 0
    limit: int = 10_000
    order: tuple[str, ...] = ()

    def due(self, span: OpenSession) -> int:
        """When a session must be processed although no row arrives."""
        return span.last + self.gap + (self.keep if span.finished else 0)

    def sorted(self, rows: Iterable[Timed]) -> list[Timed]:
        """Rows by time; rows of the same time by `order`, then by their contents."""
        ordered = sorted(rows, key=lambda one: one[0])
        start = 0
        for place in range(1, len(ordered) + 1):
            if place < len(ordered) and ordered[place][0] == ordered[start][0]:
                continue
            if place - start > 1:
                ordered[start:place] = sorted(ordered[start:place], key=self._tie)
            start = place
        return ordered

    def _tie(self, one: Timed) -> Any:
        row = one[1]
        first = [(row.get(name) is not None, row.get(name)) for name in self.order]
        return [value if value[0] else (False, 0) for value in first], repr(row)


@dataclass
class SessionRun:
    """Instantiates the class and calls its methods."""

    known: ProjectClass
    options: dict[str, Any]
    rules: Rules
    output: pa.Schema

    def advance(
        self, span: OpenSession | None, rows: Sequence[Timed], until: int | None
    ) -> tuple[OpenSession | None, list[Row]]:
        """Process some rows, in order, and advance the time to `until` (None: to the end of the session).

        Returns the session after that, and the output rows.
        """
        if not rows and (span is None or (until is not None and until < self.rules.due(span))):
            return span, []
        try:
            return self._advance(span, rows, until)
        except ProjectError:
            raise
        except Exception as error:
            raise self.known.failed(error) from error

    def _advance(
        self, span: OpenSession | None, rows: Sequence[Timed], until: int | None
    ) -> tuple[OpenSession | None, list[Row]]:
        rules, output = self.rules, list[Row]()
        session = None if span is None else self._recalled(span)
        last, count, finished = (0, 0, False) if span is None else (span.last, span.rows, span.finished)
        for time, row in rows:
            if session is not None and not finished and (time - last >= rules.gap or count >= rules.limit):
                output += session.finish()
                count, finished = 0, True
            if session is None or (finished and (not rules.keep or time - last >= rules.gap + rules.keep)):
                session = self.known.make(self.options)
            output += session.add(row)
            last, count, finished = time, count + 1, False
        if session is not None and not finished and (until is None or until >= last + rules.gap):
            output += session.finish()
            count, finished = 0, True
        if session is None or until is None or (finished and until >= last + rules.gap + rules.keep):
            return None, output
        return OpenSession(last, count, finished, msgspec.json.encode(session.remember())), output

    def _recalled(self, span: OpenSession) -> Any:
        session = self.known.make(self.options)
        session.recall(msgspec.json.decode(span.memory))
        return session

    def table(self, rows: list[Row]) -> pa.Table:
        """The output rows as a table with the declared columns."""
        names = set(self.output.names)
        for row in rows:
            if not isinstance(row, dict) or row.keys() != names:
                found = sorted(row) if isinstance(row, dict) else type(row).__name__
                message = f"returned {found} instead of the columns {sorted(names)}"
                raise self.known.error("python-step-columns", message)
        try:
            return pa.Table.from_pylist(rows, schema=self.output)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
            raise self.known.error("python-step-columns", f"returned a value of another type: {error}") from error
