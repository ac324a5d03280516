"""Live events over HTTP, on a real server: server-sent events and WebSockets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import websockets.exceptions
from tests.serve import kit
from tests.serve.kit import FILMS, Served, api_key, film
from websockets.sync.client import ClientConnection, connect

from headrace.core.endpoints import Op
from headrace.core.errors import RequestError
from headrace.serve.rest.live import parse_parameters

pytestmark = pytest.mark.service


class Running(kit.Running):
    """With those who listen."""

    def events(self, path: str = "/films/events", headers: Any = None, **parameters: str) -> Stream:
        return Stream(self.url + path, headers or {}, parameters)

    def socket(self, query: str = "", **more: Any) -> ClientConnection:
        return connect(f"ws://127.0.0.1:{self.port}/films/events{query}", open_timeout=10, **more)


class Stream:
    """Server-sent events, read as they come."""

    def __init__(self, url: str, headers: dict[str, str], parameters: dict[str, str]) -> None:
        self._client = httpx.Client(timeout=20)
        self._context = self._client.stream("GET", url, headers=headers, params=parameters)
        self.response = self._context.__enter__()
        self._lines = self.response.iter_lines()

    def take(self, count: int) -> list[tuple[str, str | None, Any]]:
        """The next events other than heartbeats: type, id, data."""
        found: list[tuple[str, str | None, Any]] = []
        while len(found) < count:
            event = self._next()
            if event[0] != "heartbeat":
                found.append(event)
        return found

    def _next(self) -> tuple[str, str | None, Any]:
        said: dict[str, str] = {}
        for line in self._lines:
            if not line:
                return said["event"], said.get("id"), json.loads(said["data"])
            name, _, value = line.partition(": ")
            said[name] = value
        raise EOFError

    def close(self) -> None:
        self._context.__exit__(None, None, None)
        self._client.close()


@pytest.fixture
def running(served: Served) -> Iterator[Running]:
    found = Running(served.settings(cors=["https://a.shop"]))
    yield found
    found.close()


def test_server_sent_events(running: Running, served: Served) -> None:
    stream = running.events(**{"$filter": '{"id": {"$lte": 2}}', "types": "insert,update", "snapshot": "true"})
    assert stream.response.headers["content-type"].startswith("text/event-stream")
    rows = stream.take(3)
    assert [(kind, place) for kind, place, _ in rows] == [
        ("snapshot", None),
        ("snapshot", None),
        ("snapshot_end", "v1-20"),
    ]
    served.put(FILMS, [film(1, title="X"), film(3, title="Y")])
    served.put(FILMS, [{"id": 1}], Op.DELETE)
    served.put(FILMS, [film(1)])
    changes = stream.take(2)
    assert [(kind, place) for kind, place, _ in changes] == [("update", "v1-21"), ("insert", "v1-24")]
    assert changes[0][2] == {"type": "update", "id": "v1-21", "row": film(1, title="X"), "old": film(1)}
    stream.close()
    resumed = running.events(headers={"Last-Event-ID": "v1-21"}, after="v1-1", snapshot="true")
    assert [place for _, place, _ in resumed.take(3)] == ["v1-22", "v1-23", "v1-24"]
    resumed.close()


def test_what_is_wrong_is_said_before_anything_is_sent(running: Running) -> None:
    def code(path: str = "/films/events", **parameters: str) -> tuple[int, str]:
        answer = httpx.get(running.url + path, params=parameters, timeout=10)
        assert answer.headers["content-type"] == "application/problem+json"
        return answer.status_code, answer.json()["code"]

    assert code("/movies/events") == (404, "unknown-endpoint")
    assert code(types="upsert") == (400, "bad-event-type")
    assert code(after="12") == (400, "bad-resume-token")
    assert code(snapshot="yes") == (400, "bad-parameter")
    assert code(limit="5") == (400, "bad-parameter")
    assert code(**{"$filter": "{"}) == (400, "bad-parameter")
    assert code(**{"$filter": '{"titel": 1}'}) == (400, "unknown-column")


def test_a_websocket(running: Running, served: Served) -> None:
    with running.socket("?after=v1-20&types=insert") as live:
        assert json.loads(live.recv(10)) == {"type": "heartbeat", "id": "v1-20"}
        served.put(FILMS, [film(1, title="X"), film(40)])
        assert json.loads(live.recv(10)) == {"type": "insert", "id": "v1-22", "row": film(40)}
        live.send(json.dumps({"type": "subscribe", "filter": {"id": 40}, "snapshot": True, "types": ["delete"]}))
        # resumes from the token of the address: a new one, or none, begins with the rows
        assert json.loads(live.recv(10))["type"] == "heartbeat"
        served.put(FILMS, [{"id": 40}], Op.DELETE)
        assert json.loads(live.recv(10)) == {"type": "delete", "id": "v1-23", "row": None, "old": film(40)}


def test_a_websocket_is_told_what_is_wrong(running: Running) -> None:
    for query, message, expected in (
        ("?types=upsert", None, "bad-event-type"),
        ("", '{"type": "subscribe", "filter": {"titel": 1}}', "unknown-column"),
        ("", "{", "bad-subscription"),
        ("", '{"type": "subscribe", "fliter": {}}', "bad-subscription"),
    ):
        with running.socket(query) as live:
            if message is not None:
                live.send(message)
            said = json.loads(live.recv(10))
            while said["type"] == "heartbeat":
                said = json.loads(live.recv(10))
            assert (said["type"], said["code"]) == ("error", expected)
            with pytest.raises(websockets.exceptions.ConnectionClosed) as closed:
                live.recv(10)
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, expected)


def test_pages_of_elsewhere_get_no_websocket(running: Running) -> None:
    for origin in ("https://evil.shop", "null"):
        with pytest.raises(websockets.exceptions.InvalidStatus):
            running.socket(origin=origin)
    for origin in ("https://a.shop", running.url):
        with running.socket(origin=origin) as live:
            assert json.loads(live.recv(10))["type"] == "heartbeat"


def test_tokens(served: Served) -> None:
    endpoints = {"films": {"fields": ["id"], "filter": {"region": "EU"}}}
    keys = [
        api_key("eu", "k-eu", scopes=["events"], endpoints=endpoints),
        api_key("reader", "k-read"),
    ]
    running = Running(served.settings(auth={"keys": keys}, limits={"subscribers": 3}))
    try:
        _check_refusals(running)
        _check_ways(running)
        _check_narrowed(running, served)
    finally:
        running.close()


def _check_refusals(running: Running) -> None:
    url = f"{running.url}/films/events"
    assert httpx.get(url).status_code == 401
    assert httpx.get(url, headers={"x-api-key": "k-read"}).json()["code"] == "wrong-scope"
    assert httpx.get(f"{running.url}/visits/events", headers={"x-api-key": "k-eu"}).status_code == 403
    hidden = httpx.get(url, headers={"x-api-key": "k-eu"}, params={"$filter": '{"region": "US"}'})
    assert hidden.json()["code"] == "unknown-column"


def _check_ways(running: Running) -> None:
    """A token in a header, in the list of protocols, or in the first message."""
    with running.socket(additional_headers={"Authorization": "Bearer k-eu"}) as live:
        assert json.loads(live.recv(10))["type"] == "heartbeat"
    with running.socket(subprotocols=["headrace", "bearer.k-eu"]) as live:
        assert live.subprotocol == "headrace"
        assert json.loads(live.recv(10))["type"] == "heartbeat"
    with running.socket() as live:
        live.send('{"type": "subscribe", "token": "k-eu"}')
        assert json.loads(live.recv(10))["type"] == "heartbeat"
    with running.socket() as live:
        live.send('{"type": "subscribe", "token": "k-wrong"}')
        assert json.loads(live.recv(10))["code"] == "bad-token"


def _check_narrowed(running: Running, served: Served) -> None:
    headers = {"x-api-key": "k-eu"}
    stream = running.events(headers=headers, snapshot="true")
    rows = stream.take(15)
    assert [said["row"] for _, _, said in rows[:2]] == [{"id": 1}, {"id": 2}]
    with running.socket("?after=v1-20", additional_headers=headers) as live:
        live.recv(10)
        served.put(FILMS, [film(1, title="hidden"), film(3, title="not ours"), film(2, region="US")])
        gone = {"type": "delete", "id": "v1-23", "row": None, "old": {"id": 2}}
        assert json.loads(live.recv(10)) == gone
        assert [said for _, _, said in stream.take(1)] == [gone]
        with running.socket(additional_headers=headers) as last, running.socket(additional_headers=headers) as more:
            last.recv(10)
            assert json.loads(more.recv(10))["code"] == "too-many-subscribers"
    stream.close()


def test_parameters() -> None:
    wanted = parse_parameters([("filter", "[]"), ("types", "insert, delete"), ("snapshot", "true")], "v1-5")
    assert (wanted.filter, wanted.types, wanted.snapshot, wanted.after) == ([], {"insert", "delete"}, True, "v1-5")
    with pytest.raises(RequestError, match="twice"):
        parse_parameters([("after", "v1-1"), ("after", "v1-2")], None)
