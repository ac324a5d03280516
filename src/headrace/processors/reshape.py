"""A JSON object made of parts of another."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from headrace.core.component import Options
from headrace.core.processor import ArrowProcessor, Batches, StepContext, StepLetters, Work
from headrace.processors._steps.columns import check_document, column_of, heads, with_type
from headrace.processors._steps.json_text import NotJsonError, Path, path_of, put, read_object, written

Kind = Literal["any", "text", "json", "long", "epoch_ms"]
_REMEMBERED = 2000


class Taken(Options):
    """One part that is taken over."""

    path: str = Field(description="Where it stands: names joined by dots.", examples=["lastUpdatedOn", "owner.name"])
    type: Kind = Field(
        "any",
        description="`any`: as it stands. `text`: as a text. `json`: a text that holds a list or an object is read. "
        "`long`: a text that is a number becomes one. `epoch_ms`: an ISO date (UTC if it says nothing else) becomes "
        "milliseconds since 1970. What cannot be made so stays as it stands, unless `otherwise` says something else.",
    )
    otherwise: Any = Field(
        None, description="What is written for a text of which no `long` or `epoch_ms` can be made.", examples=[0]
    )
    prefix: str = Field("", description="What is put before a text.", examples=["IN-"])
    default: Any = Field(None, description="What is written when it is not there.", examples=["", {}])

    @field_validator("path")
    @classmethod
    def _is_a_path(cls, value: str) -> str:
        path_of(value)
        return value


class Reshape(ArrowProcessor):
    """Makes a JSON object of parts of another, under other names: what is kept of an answer, a cache or a record.

    A row without a text gets none, and so does one whose object has none of the parts; then defaults are not written
    either. What is null counts as missing. A text that is no JSON object makes the row a dead letter (`not-json`),
    unless `invalid` says otherwise.
    What comes out depends on the row alone, so a batch that runs again gives the same. Order stays. Scale: equal texts
    of an Arrow batch are read once, and the last 2,000 of a task are remembered, so answers of a lookup that many rows
    share cost next to nothing.
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
        description="What becomes of a row whose text is no JSON object: a `dead_letter`, or (`missing`) a row as if "
        "there were no text, for answers of a cache that somebody else fills.",
    )

    @field_validator("fields")
    @classmethod
    def _are_paths(cls, value: dict[str, str | Taken]) -> dict[str, str | Taken]:
        for name, one in value.items():
            path_of(name)
            if isinstance(one, str):
                path_of(one)
        return value

    @property
    def label(self) -> str:
        """The column and how much is taken."""
        return f"reshape {self.column} to {len(self.fields)} fields"

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        """The text."""
        return None if wanted is None else wanted - {self._into} | heads([self.column])

    def output(self, given: pa.Schema) -> pa.Schema:
        """One text more, or the same columns."""
        check_document(given, self.column, "reshape")
        return with_type(given, self._into, pa.string())

    def work(self, given: pa.Schema, at: StepContext) -> Work:
        """One distinct text after the other."""
        fields = {name: Taken(path=one) if isinstance(one, str) else one for name, one in self.fields.items()}
        parts = [_ReshapedPart.of(name, one, self.strip, self.empty == "drop") for name, one in fields.items()]
        return _Shaping(self.column, self._into, parts, at.letters if self.invalid == "dead_letter" else None)

    @property
    def _into(self) -> str:
        return self.into or self.column.rpartition(".")[2]


@dataclass(frozen=True)
class _ReshapedPart:
    """One part, ready for work."""

    name: Path
    path: Path
    kind: Kind
    prefix: str
    default: Any
    otherwise: Any
    strip: Mapping[int, None] = field(repr=False)
    no_empty: bool

    @staticmethod
    def of(name: str, taken: Taken, strip: str, no_empty: bool) -> _ReshapedPart:
        removed = {ord(one): None for one in strip}
        return _ReshapedPart(
            path_of(name),
            path_of(taken.path),
            taken.type,
            taken.prefix,
            taken.default,
            taken.otherwise,
            removed,
            no_empty,
        )

    def of_object(self, members: dict[str, Any]) -> Any:
        """The part in its new form; None when it is not there."""
        for name in self.path[:-1]:
            inner = members.get(name)
            if inner is None or not bytes(inner).startswith(b"{"):
                return None
            members = read_object(bytes(inner))
        raw = members.get(self.path[-1])
        if raw is None:
            return None
        text = bytes(raw)
        return self._of_text(msgspec.json.decode(text)) if text.startswith(b'"') else self._of_other(raw, text)

    def _of_text(self, text: str) -> Any:
        if not text and self.no_empty:
            return None
        if self.kind == "json" and text.lstrip()[:1] in ("[", "{"):
            try:
                # not strict: line breaks and tabs within strings, as other readers let them
                return json.loads(text, strict=False)
            except ValueError:
                return text
        made = None
        if self.kind in _MADE:
            made = _MADE[self.kind](text)
            made = self.otherwise if made is None else made
        return self.prefix + text.translate(self.strip) if made is None else made

    def _of_other(self, raw: Any, text: bytes) -> Any:
        if text == b"null":
            return None
        return self.prefix + text.decode() if self.kind == "text" else raw


def _long(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        return None


def _epoch_ms(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return round(moment.timestamp() * 1000)


_MADE = {"long": _long, "epoch_ms": _epoch_ms}


@dataclass
class _Shaping:
    """What a task does."""

    column: str
    into: str
    parts: list[_ReshapedPart]
    letters: StepLetters | None
    """None: what cannot be read is missing."""

    def __call__(self, batches: Batches) -> Batches:
        shaped = lru_cache(_REMEMBERED)(self._shaped)
        for batch in batches:
            yield self._one(batch, shaped)

    def _one(self, batch: pa.RecordBatch, shaped: Callable[[bytes], bytes | None]) -> pa.RecordBatch:
        texts = column_of(batch, self.column).dictionary_encode()
        made: list[bytes | None] = []
        refused: dict[int, str] = {}
        for number, text in enumerate(texts.dictionary.cast(pa.binary()).to_pylist()):
            try:
                made.append(shaped(text))
            except NotJsonError as error:
                made.append(None)
                refused[number] = str(error)
        column = pa.array(made, pa.binary()).cast(pa.string()).take(texts.indices)
        index = batch.schema.get_field_index(self.into)
        after = batch.append_column(self.into, column) if index < 0 else batch.set_column(index, self.into, column)
        if not refused or self.letters is None:
            return after
        return self._without(refused, self.letters, batch, after, texts.indices)

    def _shaped(self, text: bytes) -> bytes | None:
        members = read_object(text.decode(errors="replace"))
        found = [part.of_object(members) for part in self.parts]
        if all(value is None for value in found):
            return None
        made: dict[str, Any] = {}
        for part, value in zip(self.parts, found, strict=True):
            value = part.default if value is None else value
            if value is not None:
                put(made, part.name, value)
        return written(made)

    def _without(
        self,
        refused: dict[int, str],
        letters: StepLetters,
        batch: pa.RecordBatch,
        shaped: pa.RecordBatch,
        places: pa.Array,
    ) -> pa.RecordBatch:
        bad = pc.fill_null(pc.is_in(places, value_set=pa.array(list(refused), places.type)), False)
        for row in pc.indices_nonzero(bad).to_pylist():
            letters.keep(batch, row, "not-json", f"'{self.column}': {refused[places[row].as_py()]}")
        return shaped.filter(pc.invert(bad))
