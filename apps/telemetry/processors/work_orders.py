"""Splits work orders: one event per officer, and one per activity or competency of each officer."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa

# JSON objects are decoded one level at a time: lower levels keep their text, digit by digit
Fields = dict[str, msgspec.Raw]

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LISTS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]] | None)
_OF_USERS = frozenset({"roleCompetencyList", "unmappedActivities", "unmappedCompetencies"})
_OF_ROLES = frozenset({"roleDetails", "competencyDetails"})


class WorkOrders:
    """Emits each event, and after a work order its CB_ITEM_USER and, if it is published, CB_ITEM events.

    Reads `value`, `mid`, `topic`, `work_order` (whether to split the event) and `published`.
    """

    columns = "topic string, key string, value string"
    keep = False

    def __init__(self, officers: str, rows: str) -> None:
        self.officers = officers
        self.rows = rows

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        events = [event for row in batch.to_pylist() for event in self._events(row)]
        columns = zip(*events, strict=True) if events else ([], [], [])
        names = ["topic", "key", "value"]
        return pa.RecordBatch.from_arrays([pa.array(column, pa.string()) for column in columns], names=names)

    def _events(self, row: Mapping[str, Any]) -> Iterator[tuple[str, str | None, str]]:
        yield row["topic"], row["mid"], row["value"]
        if not row["work_order"]:
            return
        event = _FIELDS.decode(row["value"])
        edata = _object(event, "edata")
        order = _object(_object(edata, "cb_data"), "data")
        for number, fields in enumerate(officers(order)):
            yield self.officers, *_derived_event(row, event, edata, "CB_ITEM_USER", number, fields)
        for number, fields in enumerate(items(order) if row["published"] else ()):
            yield self.rows, *_derived_event(row, event, edata, "CB_ITEM", number, fields)


def officers(order: Fields) -> Iterator[Fields]:
    """Yield the fields of a work order combined with those of each officer."""
    for user in _list(order, "users"):
        yield _without(order, "", {"users"}) | _without(user, "wa_", _OF_USERS)


def items(order: Fields) -> Iterator[Fields]:
    """Yield the fields of each officer combined with those of each activity and competency, also within a role."""
    for user, officer in zip(_list(order, "users"), officers(order), strict=True):
        yield from _leaves(officer, _list(user, "unmappedActivities"), _list(user, "unmappedCompetencies"))
        for role in _list(user, "roleCompetencyList"):
            details = _object(role, "roleDetails")
            within = officer | _without(role, "wa_rcl_", _OF_ROLES) | _without(details, "wa_role_", {"childNodes"})
            yield from _leaves(within, _list(details, "childNodes"), _list(role, "competencyDetails"))


def _leaves(above: Fields, activities: list[Fields], competencies: list[Fields]) -> Iterator[Fields]:
    for activity in activities:
        yield above | _without(activity, "wa_activity_", frozenset())
    for competency in competencies:
        yield above | _without(competency, "wa_competency_", frozenset())


def _derived_event(
    row: Mapping[str, Any], event: Fields, edata: Fields, eid: str, number: int, fields: Fields
) -> tuple[str, str]:
    """Return the mid and JSON of a derived event. The mid depends on the original only, so that it can be repeated."""
    origin = f"{row['mid'] or row['value']}|{eid}|{number}"
    mid = f"{eid}:{uuid.UUID(bytes=hashlib.sha256(origin.encode()).digest()[:16])}"
    changed: dict[str, Any] = {"eid": eid, "mid": mid, "edata": edata | {"cb_data": fields}}
    if row["mid"] is not None:
        changed["mid_parent"] = row["mid"]
    return mid, msgspec.json.encode({**event, **changed}).decode()


def _without(fields: Fields, prefix: str, excluded: set[str] | frozenset[str]) -> Fields:
    return {prefix + name: value for name, value in fields.items() if name not in excluded}


def _object(fields: Fields, name: str) -> Fields:
    """Return a field that is an object; an empty object if it is something else."""
    try:
        return _FIELDS.decode(fields[name])
    except (KeyError, msgspec.ValidationError):
        return {}


def _list(fields: Fields, name: str) -> list[Fields]:
    """Return a field that is a list of objects; an empty list if it is something else."""
    try:
        return _LISTS.decode(fields[name]) or []
    except (KeyError, msgspec.ValidationError):
        return []
