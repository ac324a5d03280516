"""Pushed changes: validated, stored as JSON, and read back as rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from headrace.core.encoding.json_values import UnfitValueError, converter
from headrace.core.endpoints import Op
from headrace.core.errors import RequestError, did_you_mean
from headrace.core.tables import RowChange, TableShape
from headrace.log.inbox import InboxEntry, Pushed, id_of

_OPS = {"insert": Op.UPSERT, "update": Op.UPSERT, "upsert": Op.UPSERT, "delete": Op.DELETE}
_KEYS = frozenset({"op", "row", "id"})
_LONGEST_ID = 255

decode = msgspec.json.Decoder(float_hook=Decimal).decode
"""Parses JSON without loss of digits."""
_encode = msgspec.json.Encoder(order="sorted", decimal_format="string").encode


class PushRows:
    """The rows of one table."""

    def __init__(self, table: str, shape: TableShape) -> None:
        self.table = table
        self._key = shape.key
        self._names = shape.columns.names
        self._convert: dict[str, Callable[[Any], Any]] = {field.name: converter(field.type) for field in shape.columns}

    def pushed(self, document: Any, key: str | None = None) -> Pushed:
        """The changes of a request: one, or `changes`. Raises RequestError."""
        if isinstance(document, Mapping) and "changes" in document:
            changes, places = self._several(document)
        else:
            changes, places = [document], [""]
        entries = [self._entry(change, place) for change, place in zip(changes, places, strict=True)]
        _refuse_twice([change.get("id") for change in changes])
        if key is None:
            return Pushed(entries)
        content = b"\n".join(b"%d%b" % (entry.op, entry.row) for entry in entries)
        return Pushed(entries, id_of(_checked_id(key, "Idempotency-Key"), content, request=True))

    def change(self, op: Op, row: bytes) -> RowChange:
        """The change of the table that an entry of the inbox describes."""
        values = decode(row)
        if op is Op.DELETE:
            return RowChange(self.table, None, tuple(self._convert[name](values[name]) for name in self._key))
        return RowChange(self.table, [convert(values.get(name)) for name, convert in self._convert.items()])

    def _several(self, document: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
        changes = document["changes"]
        unknown = sorted(set(document) - {"changes"})
        if unknown:
            raise _refused(f"unexpected key '{unknown[0]}' next to 'changes'", 'send one change, or {"changes": […]}')
        if not isinstance(changes, list) or not changes:
            raise _refused("'changes' is not a list of changes", '{"changes": [{"op": "upsert", "row": {…}}]}')
        return changes, [f"changes[{number}]." for number in range(len(changes))]

    def _entry(self, change: Any, place: str) -> InboxEntry:
        if not isinstance(change, Mapping):
            what = f"{place.rstrip('.')} is not an object" if place else "the body is not a change"
            raise _refused(what, 'a change is {"op": "upsert", "row": {…}}')
        for name in change:
            if name not in _KEYS:
                raise _refused(f"there is no '{place}{name}'", did_you_mean(str(name), _KEYS, "a change has"))
        op = change.get("op")
        if not isinstance(op, str) or op not in _OPS:
            raise _refused(f"{place}op is none: {_shown(op)}", did_you_mean(_shown(op), _OPS, "operations"))
        row = change.get("row")
        if not isinstance(row, Mapping):
            raise _refused(f"{place}row is not an object", f"columns: {', '.join(self._names)}")
        self._check(row, f"{place}row.")
        content = _encode({name: row[name] for name in self._key} if _OPS[op] is Op.DELETE else row)
        change_id = change.get("id")
        name = None if change_id is None else _checked_id(change_id, f"{place}id")
        id = None if name is None else id_of(name, b"%d%b" % (_OPS[op], content), request=False)
        return InboxEntry(_OPS[op], content, id)

    def _check(self, row: Mapping[str, Any], place: str) -> None:
        for name, value in row.items():
            convert = self._convert.get(name)
            if convert is None:
                raise _refused(f"there is no column '{place}{name}'", did_you_mean(str(name), self._names, "columns"))
            try:
                convert(value)
            except (UnfitValueError, OverflowError) as error:
                raise _refused(f"{place}{name}: {error}", "GET /openapi.json says what each column takes") from None
        for name in self._key:
            if row.get(name) is None:
                raise _refused(f"{place}{name} is null or missing", f"the key is: {', '.join(self._key)}")


def _refuse_twice(ids: Sequence[Any]) -> None:
    named = [id for id in ids if id is not None]
    if len(set(named)) < len(named):
        raise _refused("two changes of one request have the same id", "every change has an id of its own")


def _checked_id(value: Any, place: str) -> str:
    if isinstance(value, str) and 0 < len(value) <= _LONGEST_ID:
        return value
    raise _refused(f"{place} is not a text of 1 to {_LONGEST_ID} characters", "a UUID will do")


def _shown(value: Any) -> str:
    return value[:40] if isinstance(value, str) else msgspec.json.encode(value)[:40].decode(errors="replace")


def _refused(message: str, hint: str) -> RequestError:
    return RequestError("bad-change", message, status=422, hint=hint)
