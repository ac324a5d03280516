"""Builds JSON objects from parts of others."""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa
from pydantic import Field, field_validator

from headrace.core.component import Options
from headrace.core.processor import ArrowProcessor, StepContext, Work
from headrace.processors._steps.columns import check_document, heads, with_type
from headrace.processors._steps.json_text import path_of
from headrace.processors.reshape.work import FieldReader, Reshaper

Kind = Literal["any", "text", "json", "long", "epoch_ms"]


class Taken(Options):
    """A part of the input object."""

    path: str = Field(description="The path: names joined by dots.", examples=["lastUpdatedOn", "owner.name"])
    type: Kind = Field(
        "any",
        description="`any`: unchanged. `text`: as a text. `json`: a text with a list or an object is parsed. `long`: a "
        "text with a number becomes the number. `epoch_ms`: an ISO date (by default UTC) becomes milliseconds since "
        "1970. A value that cannot be converted stays unchanged, unless `otherwise` is set.",
    )
    otherwise: Any = Field(
        None, description="The value for a text that cannot be converted to `long` or `epoch_ms`.", examples=[0]
    )
    prefix: str = Field("", description="A prefix for texts.", examples=["IN-"])
    default: Any = Field(None, description="The value if the part is missing.", examples=["", {}])

    @field_validator("path")
    @classmethod
    def _is_a_path(cls, value: str) -> str:
        path_of(value)
        return value


class Reshape(ArrowProcessor):
    """Builds a JSON object from parts of another, under other names: e.g. the part of an answer or a record to keep.

    A null text gives null, and so does an object without any of the parts; then defaults are not written either. A null
    part counts as missing. A text that is not a JSON object makes the row a dead letter (`not-json`), unless `invalid`
    says otherwise. The output depends on the row alone, so a batch that runs again gives the same rows. Order stays.
    Scale: equal texts of an Arrow batch are parsed once, and a task caches the last 2,000, so answers of a lookup that
    many rows share cost next to nothing.
    """

    type: Literal["reshape"] = "reshape"
    column: str = Field(description="The column, or field of a struct, with the JSON text.", examples=["answer"])
    into: str | None = Field(
        None, description="The column for the object, as a text. Default: `column`.", examples=["customer"]
    )
    fields: dict[str, str | Taken] = Field(
        min_length=1,
        description="The names in the new object (`a.b` is in an object `a`) and what they are made of: a path, or a "
        "path with more.",
        examples=[{"name": "displayName", "changed": {"path": "lastUpdatedOn", "type": "epoch_ms"}}],
    )
    strip: str = Field("", description="Characters that are taken out of all texts.", examples=["\\"])
    empty: Literal["keep", "drop"] = Field("keep", description="Whether empty texts are kept, or count as missing.")
    invalid: Literal["dead_letter", "missing"] = Field(
        "dead_letter",
        description="What happens to a row whose text is not a JSON object: a `dead_letter`, or (`missing`) a row as "
        "if the text were null, for answers of a cache that others fill.",
    )

    @field_validator("fields")
    @classmethod
    def _are_paths(cls, value: dict[str, str | Taken]) -> dict[str, str | Taken]:
        for name, part in value.items():
            path_of(name)
            if isinstance(part, str):
                path_of(part)
        return value

    @property
    def label(self) -> str:
        return f"reshape {self.column} to {len(self.fields)} fields"

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        return None if wanted is None else wanted - {self._into} | heads([self.column])

    def output(self, schema: pa.Schema) -> pa.Schema:
        check_document(schema, self.column, "reshape")
        return with_type(schema, self._into, pa.string())

    def work(self, schema: pa.Schema, at: StepContext) -> Work:
        parts = {name: Taken(path=part) if isinstance(part, str) else part for name, part in self.fields.items()}
        fields = [FieldReader.of(name, part, self.strip, self.empty == "drop") for name, part in parts.items()]
        return Reshaper(self.column, self._into, fields, at.letters if self.invalid == "dead_letter" else None)

    @property
    def _into(self) -> str:
        return self.into or self.column.rpartition(".")[2]
