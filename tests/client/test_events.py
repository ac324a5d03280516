from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client import Client, NotAllowedError, UnreachableError
from headrace.client.events import messages


def event(kind: str, place: str | None, **data: Any) -> bytes:
    head = f"id: {place}\n" if place else ""
    return f"{head}event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def take(events: Any, count: int) -> list[Any]:
    return [next(events) for _ in range(count)]


def test_goes_on_behind_the_last_event_after_a_lost_connection(server: Any) -> None:
    server.stream(
        [event("insert", "v1-1", row={"id": 1}), event("update", "v1-2", row={"id": 1, "n": 2}, old={"id": 1})],
        [event("delete", "v1-3", old={"id": 1})],
        [b"id: v1-9\nevent: heartbeat\ndata: {}\n\n"],
        [event("insert", "v1-10", row={"id": 2})],
    )
    with Client(server.url).endpoint("films").events({"id": {"$gt": 0}}, types=["insert", "delete"]) as events:
        found = take(events, 4)
    assert [one.type for one in found] == ["insert", "update", "delete", "insert"]
    assert (found[1].row, found[1].old, found[2].old) == ({"id": 1, "n": 2}, {"id": 1}, {"id": 1})
    paths = [asked.path for asked in server.asked]
    assert paths[0] == "/films/events?%24filter=%7B%22id%22%3A+%7B%22%24gt%22%3A+0%7D%7D&types=insert%2Cdelete"
    assert [path.rpartition("after=")[2] for path in paths[1:4]] == ["v1-2", "v1-3", "v1-9"]
    assert events.after == "v1-10"


def test_a_gap_is_told(server: Any) -> None:
    server.stream([event("gap", "v1-90", **{"from": 5, "to": 90}), event("insert", "v1-91", row={"id": 7})])
    with Client(server.url).endpoint("films").events(after="v1-4") as events:
        gap, after = take(events, 2)
    assert (gap.type, gap.detail) == ("gap", {"from": 5, "to": 90})
    assert after.id == "v1-91"


def test_a_snapshot_that_breaks_off_begins_again(server: Any) -> None:
    server.stream(
        [event("snapshot", "v1-7", row={"id": 1})],
        [event("snapshot", "v1-8", row={"id": 1}), event("snapshot_end", "v1-8")],
        [event("insert", "v1-9", row={"id": 2})],
    )
    with Client(server.url).endpoint("films").events(snapshot=True) as events:
        found = [one.type for one in take(events, 5)]
    assert found == ["snapshot", "restart", "snapshot", "snapshot_end", "insert"]
    paths = [asked.path for asked in server.asked]
    assert paths[:3] == ["/films/events?snapshot=true", "/films/events?snapshot=true", "/films/events?after=v1-8"]


def test_a_refusal_is_raised(server: Any) -> None:
    server.stream([event("insert", "v1-1", row={"id": 1})])
    server.reply({"status": 401, "body": {"code": "token-expired", "detail": "why"}})
    events = Client(server.url).endpoint("films").events()
    next(events)
    with pytest.raises(NotAllowedError, match="token-expired"):
        next(events)


def test_waits_for_a_server_that_is_not_ready(server: Any) -> None:
    server.reply({"status": 503, "body": {"code": "hydrating", "detail": "why"}})
    server.stream([event("insert", "v1-1", row={"id": 1})])
    with Client(server.url).endpoint("films").events() as events:
        assert next(events).id == "v1-1"


def test_patience_ends(server: Any) -> None:
    server.close()
    with pytest.raises(UnreachableError):
        next(Client(server.url, patience=0.05).endpoint("films").events())


def test_closed_means_over(server: Any) -> None:
    server.stream([event("insert", "v1-1", row={"id": 1})])
    events = Client(server.url).endpoint("films").events()
    next(events)
    events.close()
    assert list(events) == []


TEXT = (
    ': a comment\n\nid: 1\nevent: insert\ndata: {"ä":\ndata: 1}\n\n'
    "event: snapshot_end\n\n: beat\r\n\r\ndata:x\r\n\r\ndata: cut"
)


@settings(max_examples=40)
@given(cuts=st.lists(st.integers(0, len(TEXT.encode())), max_size=8))
def test_messages_are_the_same_however_they_are_cut(cuts: list[int]) -> None:
    data = TEXT.encode()
    places = [0, *sorted(cuts), len(data)]
    pieces = (data[a:b] for a, b in pairwise(places))
    assert list(messages(pieces)) == [
        ("insert", "1", '{"ä":\n1}'),
        ("snapshot_end", None, ""),
        ("message", None, "x"),
    ]
