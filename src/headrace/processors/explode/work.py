"""Reads the elements of arrays in JSON documents, in the tasks of an `explode` step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import ProjectError
from headrace.core.python_stage import Batches, StepLetters
from headrace.processors._steps.json_text import NotJsonError, Path, elements, on_one_line, read_object, utf8_texts

if TYPE_CHECKING:
    from headrace.processors.explode import Explode

# documents with many elements leave the step in batches of about this size
_BATCH_BYTES = 8 << 20


@dataclass
class _Elements:
    """Elements that leave the step in one batch."""

    rows: list[int] = field(default_factory=list)
    texts: list[bytes | None] = field(default_factory=list)
    numbers: list[int | None] = field(default_factory=list)
    counts: list[int | None] = field(default_factory=list)
    size: int = 0

    def add(self, row: int, text: bytes | None, number: int | None, count: int | None) -> None:
        self.rows.append(row)
        self.texts.append(text)
        self.numbers.append(number)
        self.counts.append(count)
        self.size += 0 if text is None else len(text)


@dataclass
class ElementReader:
    """Reads the elements of the documents of a task."""

    step: Explode
    path: Path
    output: pa.Schema
    letters: StepLetters

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            part = _Elements()
            excepted = self._excepted(batch)
            for row, text in enumerate(utf8_texts(batch.column(self.step.column))):
                if row in excepted:
                    part.add(row, text if self.step.into is None else None, None, None)
                else:
                    self._read(batch, row, text, part)
                if part.size >= _BATCH_BYTES:
                    yield self._rows(batch, part)
                    part = _Elements()
            yield self._rows(batch, part)

    def _excepted(self, batch: pa.RecordBatch) -> set[int]:
        if self.step.unless is None:
            return set()
        return set(pc.indices_nonzero(pc.fill_null(batch.column(self.step.unless), False)).to_pylist())

    def _read(self, batch: pa.RecordBatch, row: int, text: bytes | None, part: _Elements) -> None:
        try:
            if text is None:
                raise NotJsonError("there is no text")
            texts = [on_one_line(bytes(element)) for element in elements(read_object(text), self.path) or ()]
            if self.step.elements == "objects" and not all(element.startswith(b"{") for element in texts):
                raise NotJsonError(f"'{self.step.path}' has elements that are not objects")
        except NotJsonError as error:
            self._refuse(batch, row, text, str(error), part)
            return
        if not texts and self.step.outer:
            part.add(row, None, None, 0)
        for number, element in enumerate(texts):
            part.add(row, element, number, len(texts))

    def _refuse(self, batch: pa.RecordBatch, row: int, text: bytes | None, detail: str, part: _Elements) -> None:
        if self.step.invalid == "keep":
            part.add(row, text if self.step.into is None else None, None, None)
        elif self.step.invalid == "fail":
            raise ProjectError("invalid-row", f"'{self.step.column}' of a row is no document with that array: {detail}")
        else:
            self.letters.keep(batch, row, "not-json", detail, whole=self.step.invalid == "dead_letter")

    def _rows(self, batch: pa.RecordBatch, part: _Elements) -> pa.RecordBatch:
        added = {
            self.step.into or self.step.column: pa.array(part.texts, pa.binary()).cast(pa.string()),
            self.step.position: pa.array(part.numbers, pa.int32()),
            self.step.count: pa.array(part.counts, pa.int32()),
        }
        rows = pa.array(part.rows, pa.int32())
        columns = [added[name] if name in added else batch.column(name).take(rows) for name in self.output.names]
        return pa.RecordBatch.from_arrays(columns, schema=self.output)
