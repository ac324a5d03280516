"""Turns the elements of an array in a document into rows."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
from pydantic import Field, field_validator

from headrace.core.processor import ArrowProcessor, StepContext, Work
from headrace.processors._steps.columns import check_document, check_truth, with_type
from headrace.processors._steps.json_text import path_of
from headrace.processors.explode.work import ElementReader


class Explode(ArrowProcessor):
    r"""One row for each element of an array in a JSON document; the other columns are repeated.

    An element keeps its JSON text, digit by digit, without line breaks; a string keeps its quotes. A path is names
    joined by dots, `batch.events`; `\.` is a dot within a name. A missing, null or empty array gives no row, or with
    `outer` one row without an element. A document that is not a JSON object, or has another value at the path, is a
    dead letter with reason `not-json`; with `elements: objects` so is one with other elements.

    The output depends on the row alone, so a batch that runs again gives the same rows. Order: by rows, then as in the
    array. Scale: one document per task is parsed at a time. The other columns are copied for each element: with `into`
    another column, that includes the document itself.
    """

    type: Literal["explode"] = "explode"
    column: str = Field("value", description="The column with the document.")
    path: str = Field(description="The path of the array.", examples=["events", "batch.events"])
    into: str | None = Field(None, description="The column of the elements. Default: that of the document.")
    position: str | None = Field(None, description="A column for the number of the element, from 0.", examples=["n"])
    count: str | None = Field(None, description="A column for the number of elements.", examples=["events"])
    elements: Literal["any", "objects"] = Field("any", description="What elements may be.")
    outer: bool = Field(False, description="Whether a row without elements is emitted once, with a null element.")
    unless: str | None = Field(
        None,
        min_length=1,
        description="A boolean column: where it is true the row is emitted once, unchanged, without number and count, "
        "and its document is not parsed.",
        examples=["duplicate"],
    )
    invalid: Literal["dead_letter", "keep", "skip", "fail"] = Field(
        "dead_letter",
        description="What to do with a row whose document is not valid: `dead_letter` keeps it as such, `keep` emits "
        "it once, unchanged, without element, number and count, `skip` drops it (a dead letter that counts, without "
        "the row), `fail` stops the flow.",
    )

    @field_validator("path")
    @classmethod
    def _is_a_path(cls, value: str) -> str:
        path_of(value)
        return value

    @property
    def label(self) -> str:
        return f"explode {self.column}: {self.path}" + ("" if self.into is None else f" as {self.into}")

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        own = {self.column} if self.unless is None else {self.column, self.unless}
        return None if wanted is None else wanted - {self.into, self.position, self.count} | own

    def output(self, schema: pa.Schema) -> pa.Schema:
        check_document(schema, self.column, "explode")
        if self.unless is not None:
            check_truth(schema, self.unless, "explode")
        output = with_type(schema, self.into or self.column, pa.string())
        for name in (self.position, self.count):
            output = output if name is None else with_type(output, name, pa.int32())
        return output

    def work(self, schema: pa.Schema, at: StepContext) -> Work:
        return ElementReader(self, path_of(self.path), self.output(schema), at.letters)
