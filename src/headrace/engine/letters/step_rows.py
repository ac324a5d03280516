"""Rows that a step could not process: written to dead letters as JSON, and read back for a replay."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

import pyarrow as pa

from headrace.core.encoding.json_values import Convert, UnfitValueError, converter
from headrace.engine.letters.dead_letters import DeadLetterWriter

LETTER = "_letter"
"""The column with the id of the dead letter from which a row was read."""


def row_text(rows: pa.RecordBatch, index: int) -> bytes:
    """One row as JSON, from which the row can be restored: bytes as base64, times as ISO texts, maps as objects."""
    schema = [field.with_type(_readable(field.type)) for field in rows.schema]
    row = rows.slice(index, 1)
    try:
        values = row.to_pylist()[0]
    except (OverflowError, ValueError):
        # Python has no times before year 1 and after 9999
        values = row.cast(pa.schema(schema)).to_pylist()[0]
    document = {part.name: _json_value(values[part.name], part.type) for part in rows.schema}
    return json.dumps(document, default=str, ensure_ascii=False).encode()


def _readable(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_timestamp(kind) else kind


def _json_value(value: Any, kind: pa.DataType) -> Any:
    match value:
        case None | str() | bool() | int() | float():
            return value
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() | date():
            return value.isoformat()
        case list() if pa.types.is_map(kind):
            return {str(_json_value(name, kind.key_type)): _json_value(item, kind.item_type) for name, item in value}
        case list():
            return [_json_value(item, kind.value_type) for item in value]
        case dict():
            return {part.name: _json_value(value[part.name], part.type) for part in kind}
    return str(value)


def letter_of(position: str, value: bytes | None) -> str | None:
    """The id of the dead letter that a replay met again; None for a row that fails for the first time."""
    letter = json.loads(position).get(LETTER.lstrip("_"))
    if letter is None and value is not None:
        letter = json.loads(value).get(LETTER)
    return None if letter is None else str(letter)


@dataclass
class RowReader:
    """Reads rows from dead letters, as the function of `mapInArrow`. A row that does not fit stays a dead letter.

    Input: `id` and `value` of the dead letters. Output: the columns, then the id as `_letter`.
    """

    schema: pa.Schema
    letters: DeadLetterWriter
    _converters: dict[str, Convert] = field(default_factory=dict)

    @property
    def output_schema(self) -> pa.Schema:
        return self.schema.append(pa.field(LETTER, pa.string()))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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
            document = json.loads(value)
            row = {name: convert(document.get(name)) for name, convert in self._converters.items()}
        except (UnfitValueError, ValueError) as error:
            self.letters.add("row-changed", f"the row no longer fits: {error}", {LETTER.lstrip("_"): letter}, None)
            return None
        return {**row, LETTER: letter}
