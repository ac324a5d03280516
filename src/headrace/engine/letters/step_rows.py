"""Rows that steps could not process, as they are kept in dead letters, and as rows again."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

import pyarrow as pa

from headrace.core.encoding.json_values import Convert, UnfitValueError, converter
from headrace.engine.letters.dead_letters import LetterBox

LETTER = "_letter"
"""The id of the letter that a row came from, beside the row."""


def row_text(rows: pa.RecordBatch, index: int) -> bytes:
    """One row as JSON, from which the same row can be made again: bytes are base64, times ISO texts, maps objects."""
    schema = [field.with_type(_readable(field.type)) for field in rows.schema]
    row = rows.slice(index, 1)
    try:
        found = row.to_pylist()[0]
    except (OverflowError, ValueError):
        # Python has no times before year 1 and after 9999
        found = row.cast(pa.schema(schema)).to_pylist()[0]
    plain = {part.name: _plain(found[part.name], part.type) for part in rows.schema}
    return json.dumps(plain, default=str, ensure_ascii=False).encode()


def _readable(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_timestamp(kind) else kind


def _plain(value: Any, kind: pa.DataType) -> Any:
    match value:
        case None | str() | bool() | int() | float():
            return value
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() | date():
            return value.isoformat()
        case list() if pa.types.is_map(kind):
            return {str(_plain(name, kind.key_type)): _plain(one, kind.item_type) for name, one in value}
        case list():
            return [_plain(one, kind.value_type) for one in value]
        case dict():
            return {part.name: _plain(value[part.name], part.type) for part in kind}
    return str(value)


def letter_of(position: str, value: bytes | None) -> str | None:
    """The letter that was met again in a replay; None for a row that came through so far and is a new one."""
    told = json.loads(position).get(LETTER.lstrip("_"))
    if told is None and value is not None:
        told = json.loads(value).get(LETTER)
    return None if told is None else str(told)


@dataclass
class RowReader:
    """Makes rows of letters again; the function given to `mapInArrow`. What no longer fits stays a letter.

    Input: `id` and `value` of the letters. Output: the columns, then the id as `_letter`.
    """

    schema: pa.Schema
    letters: LetterBox
    _converters: dict[str, Convert] = field(default_factory=dict)

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of the rows, and that of the letter."""
        return self.schema.append(pa.field(LETTER, pa.string()))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows of a task."""
        self._converters = {part.name: converter(part.type) for part in self.schema}
        try:
            for batch in batches:
                pairs = zip(batch.column("id").to_pylist(), batch.column("value").to_pylist(), strict=True)
                rows = [row for row in (self._row(*pair) for pair in pairs) if row is not None]
                yield pa.RecordBatch.from_pylist(rows, schema=self.output_schema)
        finally:
            self.letters.flush()

    def _row(self, letter: str, value: bytes) -> dict[str, Any] | None:
        try:
            found = json.loads(value)
            row = {name: convert(found.get(name)) for name, convert in self._converters.items()}
        except (UnfitValueError, ValueError) as error:
            self.letters.add("row-changed", f"the row no longer fits: {error}", {LETTER.lstrip("_"): letter}, None)
            return None
        return {**row, LETTER: letter}
