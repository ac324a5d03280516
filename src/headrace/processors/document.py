"""What was decided about a document, written into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ConfigDict, Field, field_validator, model_validator

from headrace.core.component import Options
from headrace.core.encoding.python_values import python_values
from headrace.core.errors import ProjectError
from headrace.core.processor import ArrowProcessor, Batches, StepContext, StepLetters, Work
from headrace.processors._steps.columns import check_document, column_of, heads, type_of
from headrace.processors._steps.json_text import (
    NotJsonError,
    Path,
    java_double,
    opened,
    path_of,
    read_any,
    read_object,
    remove,
    utf8_texts,
    with_doubles,
    written,
)

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
        """What is done to the document."""
        done = [f"set {', '.join(self.set_)}"] if self.set_ else []
        done += [f"remove {', '.join(self.remove)}"] if self.remove else []
        return f"document {self.column}: {'; '.join(done) or 'numbers as doubles'}"

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        """The document and what is put into it."""
        own = heads([self.column, *self._sources()])
        return None if wanted is None else wanted | own

    def output(self, given: pa.Schema) -> pa.Schema:
        """The same columns."""
        check_document(given, self.column, "document")
        for part in self.set_.values():
            if part.column is not None:
                type_of(given, part.column, "document")
            elif part.json_ is not None:
                check_document(given, part.json_, "document")
        return given

    def work(self, given: pa.Schema, at: StepContext) -> Work:
        """One document after the other."""
        puts = [_Put.of(path_of(path), part, given, self.numbers == "double") for path, part in self.set_.items()]
        removed = [path_of(path) for path in self.remove]
        return _Write(self.column, puts, removed, self.numbers == "double", self.invalid, at.letters)

    def _sources(self) -> list[str]:
        return [part.source for part in self.set_.values() if part.source is not None]


@dataclass(frozen=True)
class _Put:
    """What is put at one path. Pickled to executors."""

    path: Path
    source: str | None
    constant: Any = None
    read: Callable[[pa.Array], list[Any]] | None = None
    """What makes parts of documents of a column."""

    @staticmethod
    def of(path: Path, part: Part, given: pa.Schema, doubles: bool) -> _Put:
        if part.source is None:
            return _Put(path, None, read_any(written(part.value).decode()))
        if part.json_ is not None:
            return _Put(path, part.source, read=partial(_read_texts, part.source, doubles))
        return _Put(path, part.source, read=_reader(type_of(given, part.source, "document"), doubles))

    def parts(self, rows: pa.RecordBatch) -> Sequence[Any] | None:
        """One for each row: what to put, None, or a NotJsonError. None: nothing in any row."""
        if self.source is None or self.read is None:
            return [self.constant] * rows.num_rows
        column = column_of(rows, self.source)
        return None if column.null_count == len(column) else self.read(column)


def _python(values: pa.Array) -> list[Any]:
    try:
        return python_values(values, "lossy")
    except (OverflowError, ValueError):
        # Python has no times before year 1 and after 9999
        return list(values.cast(pa.string()).to_pylist())


def _read_texts(column: str, doubles: bool, values: pa.Array) -> list[Any]:
    """Equal texts are read once: what was looked up for a row stands in others too."""
    texts = values.dictionary_encode()
    read = [_read_json(column, doubles, text) for text in texts.dictionary.cast(pa.binary()).to_pylist()]
    return [None if place is None else read[place] for place in texts.indices.to_pylist()]


def _read_json(column: str, doubles: bool, text: bytes) -> Any:
    told = text.decode(errors="replace")
    try:
        return read_any(with_doubles(told) if doubles else told)
    except NotJsonError as error:
        return NotJsonError(f"'{column}': {error}")


def _reader(kind: pa.DataType, doubles: bool) -> Callable[[pa.Array], list[Any]]:
    if doubles and pa.types.is_floating(kind):
        return partial(_each, _java_number)
    return partial(_each, _without_nulls) if pa.types.is_nested(kind) else _python


def _each(read: Callable[[Any], Any], values: pa.Array) -> list[Any]:
    return [None if value is None else read(value) for value in _python(values)]


def _java_number(value: float) -> Any:
    return read_any(java_double(value, "null") if value == value else "null")


def _without_nulls(value: Any) -> Any:
    """A struct, or what has structs inside, without the fields that are null."""
    match value:
        case dict():
            return {name: _without_nulls(part) for name, part in value.items() if part is not None}
        case list():
            return [_without_nulls(part) for part in value]
    return value


@dataclass
class _Write:
    """What a task does."""

    column: str
    puts: list[_Put]
    removed: list[Path]
    doubles: bool
    invalid: str
    letters: StepLetters

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            yield self._one(batch)

    def _one(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        place = batch.schema.get_field_index(self.column)
        given = utf8_texts(batch.column(place))
        puts = self._puts(batch)
        made: list[bytes | None] = []
        dropped: list[int] = []
        for row, text in enumerate(given):
            try:
                made.append(self._written(text, row, puts))
            except NotJsonError as error:
                made.append(text)
                if self.invalid != "keep":
                    self._refuse(batch, row, str(error))
                    dropped.append(row)
        texts = pa.array(made, pa.binary()).cast(pa.string())
        batch = batch.set_column(place, self.column, texts)
        return batch if not dropped else batch.filter(_all_but(dropped, batch.num_rows))

    def _puts(self, batch: pa.RecordBatch) -> list[tuple[Path, list[tuple[str, Sequence[Any]]]]]:
        """Neighbours that go into the same object, which is then looked for once."""
        found = [(put.path, put.parts(batch)) for put in self.puts]
        some = [(path, parts) for path, parts in found if parts is not None]
        return [
            (into, [(path[-1], parts) for path, parts in group])
            for into, group in groupby(some, key=lambda pair: pair[0][:-1])
        ]

    def _written(
        self, text: bytes | None, row: int, puts: Sequence[tuple[Path, Sequence[tuple[str, Sequence[Any]]]]]
    ) -> bytes:
        if text is None:
            raise NotJsonError("there is no text")
        members = read_object(with_doubles(text.decode()) if self.doubles else text)
        for path in self.removed:
            remove(members, path)
        for into, named in puts:
            inside = None
            for name, parts in named:
                part = parts[row]
                if part is None:
                    continue
                if isinstance(part, NotJsonError):
                    raise part
                if inside is None:
                    inside = opened(members, into)
                inside[name] = part
        return written(members)

    def _refuse(self, rows: pa.RecordBatch, row: int, detail: str) -> None:
        if self.invalid == "fail":
            raise ProjectError("invalid-row", f"'{self.column}' of a row is no JSON document: {detail}")
        self.letters.keep(rows, row, "not-json", detail, whole=self.invalid == "dead_letter")


def _all_but(dropped: list[int], count: int) -> pa.Array:
    return pc.invert(pc.is_in(pa.array(range(count)), pa.array(dropped)))
