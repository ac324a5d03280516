"""Changes of the content graph: new values of a content's properties, and its dial codes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa

# JSON is decoded one level at a time: lower levels keep their text, digit by digit
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_CHANGES = msgspec.json.Decoder(dict[str, dict[str, msgspec.Raw] | None])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_NULL = msgspec.Raw(b"null")
_DATES = ("lastStatusChangedOn", "lastUpdatedOn", "createdOn")
_LISTS = ("gradeLevel", "subject", "medium", "language", "keywords")
_CODES = ("dialcodes", "reservedDialCodes")
_UPSTREAM = "%Y-%m-%dT%H:%M:%S"
_LATEST = 253_402_300_799_999
_OUTPUT = pa.schema(
    [
        ("content_id", pa.string()),
        ("ets", pa.int64()),
        ("properties", pa.string()),
        ("codes", pa.list_(pa.string())),
        ("problem", pa.string()),
    ]
)


class Changes:
    """Parses `value`. `properties` is a JSON object of the new values, or null.

    Times of `_DATES` become milliseconds, texts of `_LISTS` become lists. `problem` describes an invalid event.
    """

    columns = "content_id string, ets bigint, properties string, codes array<string>, problem string"

    def __init__(self, compat: str = "none") -> None:
        """`compat: sunbird` ignores fractions of seconds."""
        self._upstream = compat == "sunbird"

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        texts = batch.column("value").cast(pa.binary()).to_pylist()
        table = pa.Table.from_pylist([self.read(text or b"") for text in texts], _OUTPUT)
        columns = [column.combine_chunks() for column in table.columns]
        return pa.RecordBatch.from_arrays([*batch.columns, *columns], names=[*batch.schema.names, *_OUTPUT.names])

    def read(self, text: bytes) -> dict[str, Any]:
        """Return the output columns of an event."""
        row: dict[str, Any] = {}
        try:
            event = _FIELDS.decode(text.strip())
            row["content_id"] = _text(event.get("nodeUniqueId", _NULL)) or None
            row["ets"] = _time(event.get("ets", _NULL))
            within = _FIELDS.decode(event["transactionData"]) if _is_set(event, "transactionData") else {}
            properties = _unquoted(within["properties"]) if _is_set(within, "properties") else b"{}"
            changes = _CHANGES.decode(properties)
            new = {
                name: change["nv"] for name, change in changes.items() if change is not None and _is_set(change, "nv")
            }
            row["codes"] = list(dict.fromkeys(code for name in _CODES if name in new for code in _codes(new[name])))
            if new:
                values = {name: self._value(name, value) for name, value in new.items()}
                row["properties"] = msgspec.json.encode(values).decode()
        except (msgspec.DecodeError, RecursionError) as error:
            row["problem"] = f"the event is invalid: {error}"
        return row

    def _value(self, name: str, value: msgspec.Raw) -> Any:
        if not bytes(value).startswith(b'"'):
            return value
        if name in _LISTS:
            return [value]
        time = self._milliseconds(_text(value)) if name in _DATES else None
        return value if time is None else time

    def _milliseconds(self, text: str) -> int | None:
        try:
            time = datetime.strptime(text[:19], _UPSTREAM) if self._upstream else datetime.fromisoformat(text)
            return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
        except ValueError:
            return None


def _is_set(fields: dict[str, msgspec.Raw], name: str) -> bool:
    return fields.get(name, _NULL) != _NULL


def _text(value: msgspec.Raw) -> str:
    """Return the value of a text, an empty text for null, and the JSON of anything else."""
    written = bytes(value).decode()
    return str(msgspec.json.decode(value)) if written.startswith('"') else "" if written == "null" else written


def _unquoted(value: msgspec.Raw) -> bytes:
    """Return JSON that may be inside a text."""
    return _text(value).encode()


def _time(value: msgspec.Raw) -> int | None:
    """Return a time in milliseconds; None if the number is not a valid time."""
    try:
        number = msgspec.json.decode(value, type=float)
    except (msgspec.DecodeError, RecursionError):
        return None
    return int(number) if 0 <= number <= _LATEST else None


def _codes(value: msgspec.Raw) -> Iterator[str]:
    """Yield the texts of a list, or the names of an object."""
    for shape in (_LIST, _FIELDS):
        try:
            elements = shape.decode(_unquoted(value))
        except (msgspec.DecodeError, RecursionError):
            continue
        yield from (element if isinstance(element, str) else _text(element) for element in elements)
        return
