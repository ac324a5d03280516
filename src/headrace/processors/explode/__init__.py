"""The elements of an array inside a document, as rows."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
from pydantic import Field, field_validator

from headrace.core.processor import ArrowProcessor, StepContext, Work
from headrace.processors._steps.columns import check_document, check_truth, with_type
from headrace.processors._steps.json_text import path_of
from headrace.processors.explode.work import ElementReader


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
        return f"explode {self.column}: {self.path}" + ("" if self.into is None else f" as {self.into}")

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        own = {self.column} if self.unless is None else {self.column, self.unless}
        return None if wanted is None else wanted - {self.into, self.position, self.count} | own

    def output(self, schema: pa.Schema) -> pa.Schema:
        check_document(schema, self.column, "explode")
        if self.unless is not None:
            check_truth(schema, self.unless, "explode")
        made = with_type(schema, self.into or self.column, pa.string())
        for name in (self.position, self.count):
            made = made if name is None else with_type(made, name, pa.int32())
        return made

    def work(self, schema: pa.Schema, at: StepContext) -> Work:
        return ElementReader(self, path_of(self.path), self.output(schema), at.letters)
