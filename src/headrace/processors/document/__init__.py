"""Writes values into JSON documents."""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa
from pydantic import ConfigDict, Field, field_validator, model_validator

from headrace.core.component import Options
from headrace.core.processor import ArrowProcessor, StepContext, Work
from headrace.processors._steps.columns import check_document, heads, type_of
from headrace.processors._steps.json_text import path_of
from headrace.processors.document.work import DocumentWriter, PartWriter

_DESCRIPTION = "What to do with a row whose document, or whose `json` column, is not valid: "


class Part(Options):
    """The value at one path of a document: a column, the JSON in a column, or a constant."""

    model_config = ConfigDict(populate_by_name=True)

    column: str | None = Field(None, description="The column, or field of a struct, with the value.")
    json_: str | None = Field(None, alias="json", description="The column with the value as JSON text.")
    value: Any = Field(None, description="A constant: a text, number, true, false, null, list or mapping.")

    @model_validator(mode="after")
    def _one(self) -> Part:
        if len(self.model_fields_set) != 1 or (self.column is self.json_ is None and "value" not in self.given):
            raise ValueError("needs one of 'column', 'json' and 'value'")
        return self

    @property
    def given(self) -> set[str]:
        return self.model_fields_set

    @property
    def source(self) -> str | None:
        """The column of the value."""
        return self.column if self.column is not None else self.json_


class Document(ArrowProcessor):
    r"""Writes columns and constants into a JSON document, and removes parts of it.

    A path is names joined by dots, `context.channel`; `\.` is a dot within a name. First the paths of `remove` are
    removed, then those of `set` are written, in their order. Missing objects on a path are created, and replace other
    values. A null column sets nothing. Everything else keeps its text, digit by digit, and its order; new names are
    added at the end, the last one of duplicate names counts, and line breaks between values are dropped. Numbers,
    booleans, structs, maps and arrays are written as such, times as ISO texts, bytes as base64; null values in structs
    and maps are left out, and a number that JSON does not have, such as NaN, is null. For a wide struct it is cheaper
    to write the text of `to_json` in SQL with `json`.

    The reason of a dead letter is `not-json`. The output depends on the row alone, so a batch that runs again gives the
    same rows. Order and number of rows stay, except for dead letters. Scale: only the objects on a path are parsed; one
    document is in memory at a time.
    """

    type: Literal["document"] = "document"
    column: str = Field("value", description="The column with the document, which is replaced.")
    set_: dict[str, Part] = Field(
        default={},
        alias="set",
        description="The values by path.",
        examples=[{"flags.checked": {"value": True}, "channel": {"column": "channel"}, "error": {"json": "error"}}],
    )
    remove: list[str] = Field(default=[], description="Paths to remove.", examples=[["edata.values", "uid"]])
    numbers: Literal["keep", "double"] = Field(
        "keep",
        description="`keep` leaves numbers as they are written. `double` writes those of the document, of `json` and "
        "of columns of type double as Java's Double.toString does (1.52906801609E12, 46.0), which loses digits beyond "
        "the 16th; other columns and constants keep their form.",
    )
    invalid: Literal["dead_letter", "keep", "skip", "fail"] = Field(
        "dead_letter",
        description=_DESCRIPTION + "`dead_letter` keeps it as such, `keep` passes the row unchanged, `skip` drops "
        "it (a dead letter that counts, without the row), `fail` stops the flow.",
    )

    @field_validator("set_", "remove")
    @classmethod
    def _paths(cls, value: Any) -> Any:
        for path in value:
            path_of(path)
        return value

    @model_validator(mode="after")
    def _does_something(self) -> Document:
        if not self.set_ and not self.remove and self.numbers == "keep":
            raise ValueError("needs 'set', 'remove' or 'numbers: double'")
        return self

    @property
    def label(self) -> str:
        done = [f"set {', '.join(self.set_)}"] if self.set_ else []
        done += [f"remove {', '.join(self.remove)}"] if self.remove else []
        return f"document {self.column}: {'; '.join(done) or 'numbers as doubles'}"

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        own = heads([self.column, *self._sources()])
        return None if wanted is None else wanted | own

    def output(self, schema: pa.Schema) -> pa.Schema:
        check_document(schema, self.column, "document")
        for part in self.set_.values():
            if part.column is not None:
                type_of(schema, part.column, "document")
            elif part.json_ is not None:
                check_document(schema, part.json_, "document")
        return schema

    def work(self, schema: pa.Schema, at: StepContext) -> Work:
        doubles = self.numbers == "double"
        writers = [PartWriter.of(path_of(path), part, schema, doubles) for path, part in self.set_.items()]
        removed = [path_of(path) for path in self.remove]
        return DocumentWriter(self.column, writers, removed, doubles, self.invalid, at.letters)

    def _sources(self) -> list[str]:
        return [part.source for part in self.set_.values() if part.source is not None]
