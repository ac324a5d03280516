"""Makes JSON objects of parts of others, in the tasks of a `reshape` step."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.python_stage import Batches, StepLetters
from headrace.processors._steps.columns import column_of
from headrace.processors._steps.json_text import NotJsonError, Path, path_of, put, read_object, written

if TYPE_CHECKING:
    from headrace.processors.reshape import Kind, Taken

_CACHED_TEXTS = 2000


@dataclass(frozen=True)
class FieldReader:
    """Reads one field of the result. Pickled to executors."""

    name: Path
    path: Path
    kind: Kind
    prefix: str
    default: Any
    otherwise: Any
    strip: Mapping[int, None] = field(repr=False)
    no_empty: bool

    @staticmethod
    def of(name: str, part: Taken, strip: str, no_empty: bool) -> FieldReader:
        removed = {ord(character): None for character in strip}
        return FieldReader(
            path_of(name),
            path_of(part.path),
            part.type,
            part.prefix,
            part.default,
            part.otherwise,
            removed,
            no_empty,
        )

    def of_object(self, members: dict[str, Any]) -> Any:
        """The value for the result; None when it is missing."""
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
                # not strict: strings may have line breaks and tabs in them, as other readers allow
                return json.loads(text, strict=False)
            except ValueError:
                return text
        value = None
        if self.kind in _CONVERTERS:
            value = _CONVERTERS[self.kind](text)
            value = self.otherwise if value is None else value
        return self.prefix + text.translate(self.strip) if value is None else value

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


_CONVERTERS = {"long": _long, "epoch_ms": _epoch_ms}


@dataclass
class Reshaper:
    """Reshapes the documents of a task."""

    column: str
    into: str
    fields: list[FieldReader]
    letters: StepLetters | None
    """None: a text that is not JSON counts as missing."""

    def __call__(self, batches: Batches) -> Batches:
        shaped = lru_cache(_CACHED_TEXTS)(self._shaped)
        for batch in batches:
            yield self._reshaped(batch, shaped)

    def _reshaped(self, batch: pa.RecordBatch, shaped: Callable[[bytes], bytes | None]) -> pa.RecordBatch:
        texts = column_of(batch, self.column).dictionary_encode()
        results: list[bytes | None] = []
        refused: dict[int, str] = {}
        for number, text in enumerate(texts.dictionary.cast(pa.binary()).to_pylist()):
            try:
                results.append(shaped(text))
            except NotJsonError as error:
                results.append(None)
                refused[number] = str(error)
        column = pa.array(results, pa.binary()).cast(pa.string()).take(texts.indices)
        index = batch.schema.get_field_index(self.into)
        after = batch.append_column(self.into, column) if index < 0 else batch.set_column(index, self.into, column)
        if not refused or self.letters is None:
            return after
        return self._without(refused, self.letters, batch, after, texts.indices)

    def _shaped(self, text: bytes) -> bytes | None:
        members = read_object(text.decode(errors="replace"))
        values = [part.of_object(members) for part in self.fields]
        if all(value is None for value in values):
            return None
        result: dict[str, Any] = {}
        for part, value in zip(self.fields, values, strict=True):
            value = part.default if value is None else value
            if value is not None:
                put(result, part.name, value)
        return written(result)

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
