"""The options of formats whose records may be framed with a schema id."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from headrace.core.errors import ProjectError
from headrace.core.format import Encoder, Format
from headrace.formats._confluent import FramedEncoder, header_of
from headrace.systems.schema_registry import Registry


class FramedFormat(Format):
    """A format whose records may have the header of the Confluent wire format."""

    framing: Literal["plain", "confluent"] = Field(
        "plain",
        description="`confluent`: records start with a zero byte and a schema id, as Confluent writes them.",
    )
    registry: Registry | None = Field(
        None,
        description="Where the schemas of records are looked up. Without it, all have the schema of the format.",
    )
    schema_id: int | None = Field(
        None, description="The schema id that written records carry.", ge=0, lt=2**32, examples=[7]
    )

    @model_validator(mode="after")
    def _framing_options_belong_together(self) -> FramedFormat:
        if self.framing == "plain" and (self.registry is not None or self.schema_id is not None):
            raise ValueError("`registry` and `schema_id` need `framing: confluent`")
        return self

    def framed(self, encoder: Encoder, path: tuple[int, ...] | None = None) -> Encoder:
        """The encoder, which adds the header if records are framed."""
        return encoder if self.framing == "plain" else FramedEncoder(encoder, self.header(path))

    def header(self, path: tuple[int, ...] | None = None) -> bytes:
        """The header of written records."""
        if self.schema_id is None:
            raise ProjectError(
                "missing-schema-id",
                f"format '{self.kind()}' writes framed records, but has no `schema_id`",
                hint="add schema_id: <id in the registry>",
            )
        return header_of(self.schema_id, path)
