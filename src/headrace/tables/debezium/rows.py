"""Change events as changes of one table."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import InvalidOperation
from enum import Enum
from typing import Any

import pyarrow as pa

from headrace.core.encoding.json_values import Convert
from headrace.core.tables import UNCHANGED, RowChange, TableShape
from headrace.tables.debezium.connect import Schema, bare_converters, columns_of, converters_of
from headrace.tables.debezium.messages import BadMessageError, DebeziumEvent, MessageParser

_UNITS = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}
_UNFIT = (ValueError, TypeError, KeyError, AttributeError, OverflowError, InvalidOperation)
Converters = Sequence[tuple[str, Convert]]


class NoChange(Enum):
    """An event without a change of a row."""

    NOTHING = "nothing"
    TRUNCATED = "truncated"


class TableRows:
    """Converts the events of one table to changes. Unless columns are declared, new columns of events are added."""

    def __init__(
        self,
        name: str,
        shape: TableShape,
        messages: MessageParser,
        *,
        declared: bool,
        timestamps: str,
        decimals: str,
        unavailable: str,
    ) -> None:
        self.name = name
        self.shape = shape
        self._messages = messages
        self._declared = declared
        self._bare = (_UNITS[timestamps], decimals)
        self._unavailable = unavailable_forms(unavailable)
        self._converters: dict[tuple[int, bool], Converters] = {}
        self._grown_for: set[int] = set()
        self._key_places = [shape.columns.names.index(column) for column in shape.key]
        self._key_columns = pa.schema([shape.columns.field(column) for column in shape.key])

    def event(self, value: bytes | None) -> DebeziumEvent | None:
        """The event in a value; None for a tombstone."""
        return None if value is None else self._messages.event(value)

    def grow(self, event: DebeziumEvent | None) -> TableShape | None:
        """The new shape of the table if the event has new columns, which are added at the end."""
        schema = None if event is None else event.row_schema
        if self._declared or schema is None or id(schema) in self._grown_for:
            return None
        with _explained():
            columns = columns_of(schema)
        self._grown_for.add(id(schema))  # the parser caches schemas, so the id() of a schema is stable
        new = [column for column in columns if column.name not in self.shape.columns.names]
        if not new:
            return None
        self.shape = TableShape(pa.schema([*self.shape.columns, *new]), self.shape.key)
        self._converters.clear()
        return self.shape

    def change(self, event: DebeziumEvent | None, key: bytes | None) -> RowChange | NoChange:
        if event is None:
            return self._tombstone(key)
        match event.op:
            case "c" | "r" | "u":
                return self._upsert(event)
            case "d":
                gone = self._key_of(event.before, event.row_schema) or self._message_key(key)
                if gone is None:
                    raise BadMessageError(f"a deleted row without {self._key_named()}: not in `before`, nor in the key")
                return RowChange(self.name, None, gone)
            case "t":
                return NoChange.TRUNCATED
            case "m":  # a message in the database's log that is not about a row
                return NoChange.NOTHING
        raise BadMessageError(f"`op` is '{event.op}', not c, r, u, d or t")

    def _tombstone(self, key: bytes | None) -> RowChange | NoChange:
        if key is None:
            raise BadMessageError("it has neither a key nor a value")
        gone = self._message_key(key)
        # the key of the topic may differ from the table's; the delete before it was sufficient
        return NoChange.NOTHING if gone is None else RowChange(self.name, None, gone)

    def _upsert(self, event: DebeziumEvent) -> RowChange:
        if event.after is None:
            raise BadMessageError(f"a change '{event.op}' without `after`")
        row = self._values(event.after, self._converters_for(event.row_schema, key=False))
        key = tuple(row[place] for place in self._key_places)
        if any(value is None or value is UNCHANGED for value in key):
            raise BadMessageError(f"a row without {self._key_named()}")
        before = self._key_of(event.before, event.row_schema)
        return RowChange(self.name, row, None if before == key else before)

    def _key_of(self, row: Mapping[str, Any] | None, schema: Schema | None) -> tuple[Any, ...] | None:
        """The key in a row that may be incomplete."""
        if row is None or any(row.get(column) is None for column in self.shape.key):
            return None
        return tuple(self._values(row, self._converters_for(schema, key=True)))

    def _message_key(self, key: bytes | None) -> tuple[Any, ...] | None:
        if key is None:
            return None
        part = self._messages.part(key)
        if not isinstance(part.payload, dict):  # a key of one column may be written without its name
            return self._key_of({self.shape.key[0]: part.payload}, None) if len(self.shape.key) == 1 else None
        return self._key_of(part.payload, part.schema)

    def _converters_for(self, schema: Schema | None, *, key: bool) -> Converters:
        converters = self._converters.get((id(schema), key))
        if converters is None:
            columns = self._key_columns if key else self.shape.columns
            with _explained():
                converters = bare_converters(columns, *self._bare) if schema is None else converters_of(schema, columns)
            self._converters[id(schema), key] = converters
        return converters

    def _values(self, row: Mapping[str, Any], converters: Converters) -> list[Any]:
        values: list[Any] = []
        for name, convert in converters:
            raw = row.get(name)
            if isinstance(raw, str | bytes | list | dict) and raw in self._unavailable:
                values.append(UNCHANGED)
                continue
            try:
                values.append(convert(raw))
            except _UNFIT as error:
                raise BadMessageError(f"column '{name}': {error}") from error
        return values

    def _key_named(self) -> str:
        return f"its key ({', '.join(self.shape.key)})"


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except _UNFIT as error:
        raise BadMessageError(f"its schema cannot be parsed: {error}") from error


def unavailable_forms(text: str) -> tuple[Any, ...]:
    """How the connector writes an unavailable value in columns of texts, bytes, arrays and maps."""
    data = text.encode()
    return (text, data, base64.b64encode(data).decode(), [text], list(data), {text: text})
