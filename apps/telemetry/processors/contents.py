"""What changed in the graph of contents: the new values of a content's properties, and the dial codes it was given."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa

# JSON is taken apart one level at a time: what is below stays as it is written, digit by digit
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
    """Reads `value`. `properties` is a JSON object of the new values, null where there is none.

    Times of `_DATES` become milliseconds, texts of `_LISTS` lists. `problem` says what is wrong with an event.
    """

    columns = "content_id string, ets bigint, properties string, codes array<string>, problem string"

    def __init__(self, compat: str = "none") -> None:
        """`compat: sunbird` knows no fractions of seconds."""
        self._upstream = compat == "sunbird"

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """One event after the other."""
        texts = batch.column("value").cast(pa.binary()).to_pylist()
        made = pa.Table.from_pylist([self.read(text or b"") for text in texts], _OUTPUT)
        columns = [column.combine_chunks() for column in made.columns]
        return pa.RecordBatch.from_arrays([*batch.columns, *columns], names=[*batch.schema.names, *_OUTPUT.names])

    def read(self, text: bytes) -> dict[str, Any]:
        """What an event says."""
        found: dict[str, Any] = {}
        try:
            event = _FIELDS.decode(text.strip())
            found["content_id"] = _text(event.get("nodeUniqueId", _NULL)) or None
            found["ets"] = _time(event.get("ets", _NULL))
            within = _FIELDS.decode(event["transactionData"]) if _said(event, "transactionData") else {}
            said = _unquoted(within["properties"]) if _said(within, "properties") else b"{}"
            changes = _CHANGES.decode(said)
            new = {name: one["nv"] for name, one in changes.items() if one is not None and _said(one, "nv")}
            found["codes"] = list(dict.fromkeys(code for name in _CODES if name in new for code in _codes(new[name])))
            if new:
                values = {name: self._value(name, value) for name, value in new.items()}
                found["properties"] = msgspec.json.encode(values).decode()
        except (msgspec.DecodeError, RecursionError) as error:
            found["problem"] = f"the event is not what it should be: {error}"
        return found

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


def _said(fields: dict[str, msgspec.Raw], name: str) -> bool:
    return fields.get(name, _NULL) != _NULL


def _text(value: msgspec.Raw) -> str:
    """A text as it reads, nothing for null, anything else as it is written."""
    written = bytes(value).decode()
    return str(msgspec.json.decode(value)) if written.startswith('"') else "" if written == "null" else written


def _unquoted(value: msgspec.Raw) -> bytes:
    """JSON, which may stand in a text."""
    return _text(value).encode()


def _time(value: msgspec.Raw) -> int | None:
    """A number that is a time; there may be none."""
    try:
        found = msgspec.json.decode(value, type=float)
    except (msgspec.DecodeError, RecursionError):
        return None
    return int(found) if 0 <= found <= _LATEST else None


def _codes(value: msgspec.Raw) -> Iterator[str]:
    """The texts of a list, or the names of an object."""
    for shape in (_LIST, _FIELDS):
        try:
            found = shape.decode(_unquoted(value))
        except (msgspec.DecodeError, RecursionError):
            continue
        yield from (one if isinstance(one, str) else _text(one) for one in found)
        return
