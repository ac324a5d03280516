"""The elements of an array inside a document, as rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from headrace.core.errors import ProjectError
from headrace.core.processor import ArrowProcessor, Batches, StepContext, StepLetters, Work
from headrace.processors._steps.columns import check_document, check_truth, with_type
from headrace.processors._steps.json_text import (
    NotJsonError,
    Path,
    elements,
    on_one_line,
    path_of,
    read_object,
    utf8_texts,
)

# batches of documents with many elements come out in parts of about this size
_MOST_BYTES = 8 << 20


class Explode(ArrowProcessor):
    r"""One row for each element of an array inside a JSON document; the other columns are repeated.

    An element is the text that stands in the document, digit by digit, without line breaks; a text has its quotes. A
    path is names joined by dots, `batch.events`; `\.` is a dot within a name. Where the array is absent, null or empty
    there is no row, or with `outer` one without element. A document that is no JSON object, or has something else than
    an array there, is a dead letter with reason `not-json`; with `elements: objects` so is one with other elements.

    What comes out depends on the row alone, so a batch that runs again gives the same. Order: by rows, then as in the
    array. Scale: one document of each task is taken apart at a time. The columns beside it are copied for each element:
    a document that goes on under its own name as well (`into` another column) is copied so often.
    """

    type: Literal["explode"] = "explode"
    column: str = Field("value", description="The column with the document.")
    path: str = Field(description="Where the array is.", examples=["events", "batch.events"])
    into: str | None = Field(None, description="The column of the elements. Default: that of the document.")
    position: str | None = Field(None, description="A column for the number of the element, from 0.", examples=["n"])
    count: str | None = Field(None, description="A column for how many elements there are.", examples=["events"])
    elements: Literal["any", "objects"] = Field("any", description="What elements may be.")
    outer: bool = Field(False, description="Whether a row without elements comes out once, its element null.")
    unless: str | None = Field(
        None,
        min_length=1,
        description="A column of truth values: where it is true the row comes out once as it is, without number and "
        "count, and its document is not looked at.",
        examples=["duplicate"],
    )
    invalid: Literal["dead_letter", "keep", "skip", "fail"] = Field(
        "dead_letter",
        description="What to do with a row whose document is not as it should be: `dead_letter` keeps it as such, "
        "`keep` lets it through once as it is, without element, number and count, `skip` drops it (a dead letter that "
        "counts, without the row), "
        "`fail` stops the flow.",
    )

    @field_validator("path")
    @classmethod
    def _is_a_path(cls, value: str) -> str:
        path_of(value)
        return value

    @property
    def label(self) -> str:
        """What is taken apart."""
        return f"explode {self.column}: {self.path}" + ("" if self.into is None else f" as {self.into}")

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        """The document."""
        own = {self.column} if self.unless is None else {self.column, self.unless}
        return None if wanted is None else wanted - {self.into, self.position, self.count} | own

    def output(self, given: pa.Schema) -> pa.Schema:
        """The element and its number."""
        check_document(given, self.column, "explode")
        if self.unless is not None:
            check_truth(given, self.unless, "explode")
        made = with_type(given, self.into or self.column, pa.string())
        for name in (self.position, self.count):
            made = made if name is None else with_type(made, name, pa.int32())
        return made

    def work(self, given: pa.Schema, at: StepContext) -> Work:
        """One document after the other."""
        return _Split(self, path_of(self.path), self.output(given), at.letters)


@dataclass
class _ExplodedPart:
    """Elements that come out together."""

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
class _Split:
    """What a task does."""

    step: Explode
    path: Path
    output: pa.Schema
    letters: StepLetters

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            part = _ExplodedPart()
            whole = self._left_whole(batch)
            for row, text in enumerate(utf8_texts(batch.column(self.step.column))):
                if row in whole:
                    part.add(row, text if self.step.into is None else None, None, None)
                else:
                    self._take_apart(batch, row, text, part)
                if part.size >= _MOST_BYTES:
                    yield self._rows(batch, part)
                    part = _ExplodedPart()
            yield self._rows(batch, part)

    def _left_whole(self, batch: pa.RecordBatch) -> set[int]:
        if self.step.unless is None:
            return set()
        return set(pc.indices_nonzero(pc.fill_null(batch.column(self.step.unless), False)).to_pylist())

    def _take_apart(self, batch: pa.RecordBatch, row: int, text: bytes | None, part: _ExplodedPart) -> None:
        try:
            if text is None:
                raise NotJsonError("there is no text")
            found = [on_one_line(bytes(one)) for one in elements(read_object(text), self.path) or ()]
            if self.step.elements == "objects" and not all(one.startswith(b"{") for one in found):
                raise NotJsonError(f"'{self.step.path}' has elements that are no objects")
        except NotJsonError as error:
            self._refuse(batch, row, text, str(error), part)
            return
        if not found and self.step.outer:
            part.add(row, None, None, 0)
        for number, element in enumerate(found):
            part.add(row, element, number, len(found))

    def _refuse(self, batch: pa.RecordBatch, row: int, text: bytes | None, detail: str, part: _ExplodedPart) -> None:
        if self.step.invalid == "keep":
            part.add(row, text if self.step.into is None else None, None, None)
        elif self.step.invalid == "fail":
            raise ProjectError("invalid-row", f"'{self.step.column}' of a row cannot be taken apart: {detail}")
        else:
            self.letters.keep(batch, row, "not-json", detail, whole=self.step.invalid == "dead_letter")

    def _rows(self, batch: pa.RecordBatch, part: _ExplodedPart) -> pa.RecordBatch:
        made = {
            self.step.into or self.step.column: pa.array(part.texts, pa.binary()).cast(pa.string()),
            self.step.position: pa.array(part.numbers, pa.int32()),
            self.step.count: pa.array(part.counts, pa.int32()),
        }
        rows = pa.array(part.rows, pa.int32())
        columns = [made[name] if name in made else batch.column(name).take(rows) for name in self.output.names]
        return pa.RecordBatch.from_arrays(columns, schema=self.output)
