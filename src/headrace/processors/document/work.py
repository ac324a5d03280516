"""Writes values into JSON documents, in the tasks of a `document` step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.encoding.python_values import python_values
from headrace.core.errors import ProjectError
from headrace.core.python_stage import Batches, StepLetters
from headrace.processors._steps.columns import column_of, type_of
from headrace.processors._steps.json_text import (
    NotJsonError,
    Path,
    java_double,
    opened,
    read_any,
    read_object,
    remove,
    utf8_texts,
    with_doubles,
    written,
)

if TYPE_CHECKING:
    from headrace.processors.document import Part


@dataclass(frozen=True)
class PartWriter:
    """Writes one path of a document. Pickled to executors."""

    path: Path
    source: str | None
    constant: Any = None
    read: Callable[[pa.Array], list[Any]] | None = None
    """Converts a column to values of the document."""

    @staticmethod
    def of(path: Path, part: Part, schema: pa.Schema, doubles: bool) -> PartWriter:
        if part.source is None:
            return PartWriter(path, None, read_any(written(part.value).decode()))
        if part.json_ is not None:
            return PartWriter(path, part.source, read=partial(_read_texts, part.source, doubles))
        return PartWriter(path, part.source, read=_reader(type_of(schema, part.source, "document"), doubles))

    def parts(self, rows: pa.RecordBatch) -> Sequence[Any] | None:
        """For each row the value to set, None for no value, or a NotJsonError. None: no row has a value."""
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
    """Reads equal texts once: rows often share the result of a lookup."""
    texts = values.dictionary_encode()
    read = [_read_json(column, doubles, text) for text in texts.dictionary.cast(pa.binary()).to_pylist()]
    return [None if place is None else read[place] for place in texts.indices.to_pylist()]


def _read_json(column: str, doubles: bool, text: bytes) -> Any:
    json = text.decode(errors="replace")
    try:
        return read_any(with_doubles(json) if doubles else json)
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
    """A value without the null fields of the structs in it."""
    match value:
        case dict():
            return {name: _without_nulls(part) for name, part in value.items() if part is not None}
        case list():
            return [_without_nulls(part) for part in value]
    return value


@dataclass
class DocumentWriter:
    """Writes the documents of a task."""

    column: str
    writers: list[PartWriter]
    removed: list[Path]
    doubles: bool
    invalid: str
    letters: StepLetters

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            yield self._rewritten(batch)

    def _rewritten(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        place = batch.schema.get_field_index(self.column)
        writers = self._grouped(batch)
        texts: list[bytes | None] = []
        dropped: list[int] = []
        for row, text in enumerate(utf8_texts(batch.column(place))):
            try:
                texts.append(self._written(text, row, writers))
            except NotJsonError as error:
                texts.append(text)
                if self.invalid != "keep":
                    self._refuse(batch, row, str(error))
                    dropped.append(row)
        batch = batch.set_column(place, self.column, pa.array(texts, pa.binary()).cast(pa.string()))
        return batch if not dropped else batch.filter(_all_except(dropped, batch.num_rows))

    def _grouped(self, batch: pa.RecordBatch) -> list[tuple[Path, list[tuple[str, Sequence[Any]]]]]:
        """The values by the object that they go into: neighbours share one search for it."""
        values = [(writer.path, writer.parts(batch)) for writer in self.writers]
        some = [(path, parts) for path, parts in values if parts is not None]
        return [
            (into, [(path[-1], parts) for path, parts in group])
            for into, group in groupby(some, key=lambda pair: pair[0][:-1])
        ]

    def _written(
        self, text: bytes | None, row: int, writers: Sequence[tuple[Path, Sequence[tuple[str, Sequence[Any]]]]]
    ) -> bytes:
        if text is None:
            raise NotJsonError("there is no text")
        members = read_object(with_doubles(text.decode()) if self.doubles else text)
        for path in self.removed:
            remove(members, path)
        for into, named in writers:
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
            raise ProjectError("invalid-row", f"'{self.column}' of a row is not a JSON document: {detail}")
        self.letters.keep(rows, row, "not-json", detail, whole=self.invalid == "dead_letter")


def _all_except(dropped: list[int], count: int) -> pa.Array:
    return pc.invert(pc.is_in(pa.array(range(count)), pa.array(dropped)))
