"""What was decided about a document, written into it."""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa
from pydantic import ConfigDict, Field, field_validator, model_validator

from headrace.core.component import Options
from headrace.core.processor import ArrowProcessor, StepContext, Work
from headrace.processors._steps.columns import check_document, heads, type_of
from headrace.processors._steps.json_text import path_of
from headrace.processors.document.work import DocumentWriter, PartWriter

_DESCRIPTION = "What to do with a row whose document, or whose `json` column, is not what it should be: "


class Part(Options):
    """What is put at one path of a document: a column, the JSON in a column, or a constant."""

    model_config = ConfigDict(populate_by_name=True)

    column: str | None = Field(None, description="The column, or field of a struct, whose value it is.")
    json_: str | None = Field(None, alias="json", description="The column whose text, which is JSON, it is.")
    value: Any = Field(None, description="A constant: a text, number, true, false, null, list or mapping.")

    @model_validator(mode="after")
    def _one(self) -> Part:
        if len(self.model_fields_set) != 1 or (self.column is self.json_ is None and "value" not in self.given):
            raise ValueError("needs one of 'column', 'json' and 'value'")
        return self

    @property
    def given(self) -> set[str]:
        """Which of them it is."""
        return self.model_fields_set

    @property
    def source(self) -> str | None:
        """The column that it comes from."""
        return self.column if self.column is not None else self.json_


class Document(ArrowProcessor):
    r"""Puts columns and constants into a JSON document, and takes parts out of it.

    A path is names joined by dots, `context.channel`; `\.` is a dot within a name. First the paths of `remove` go,
    then those of `set` are written, in their order. Objects on the way to a path are made, also where something that
    is no object stands. A column that is null sets nothing. What is not named stays as it is written, digit by digit,
    in its order; new names come at the end, of a name that is there twice the last one counts, and line breaks between
    the parts go. Numbers, truth values, structs, maps and arrays are written as such, times as ISO texts, bytes as
    base64; a null in a struct or map is left out, and a number that JSON has not, such as NaN, is null. A wide
    struct costs less as a text made by `to_json` in SQL, put in by `json`.

    The reason of a dead letter is `not-json`. What comes out depends on the row alone, so a batch that runs again gives
    the same. Order and number of rows stay, but for dead letters. Scale: only the objects on the way to a path are
    taken apart; one document of each row is in memory at a time.
    """

    type: Literal["document"] = "document"
    column: str = Field("value", description="The column with the document; the result takes its place.")
    set_: dict[str, Part] = Field(
        default={},
        alias="set",
        description="What is put where.",
        examples=[{"flags.checked": {"value": True}, "channel": {"column": "channel"}, "error": {"json": "error"}}],
    )
    remove: list[str] = Field(default=[], description="Paths that go.", examples=[["edata.values", "uid"]])
    numbers: Literal["keep", "double"] = Field(
        "keep",
        description="`keep` leaves numbers as they are written. `double` writes those of the document, of `json` and "
        "of columns of type double as Java's Double.toString does (1.52906801609E12, 46.0), which loses digits beyond "
        "the 16th; other columns and constants keep their form.",
    )
    invalid: Literal["dead_letter", "keep", "skip", "fail"] = Field(
        "dead_letter",
        description=_DESCRIPTION
        + "`dead_letter` keeps it as such, `keep` lets the row through unchanged, `skip` drops "
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
