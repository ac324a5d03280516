"""Live events as an iterator that outlives lost connections."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

import urllib3

from headrace.client.errors import ApiError, ClientError, UnreachableError, refused, told
from headrace.client.transport import AGAIN, Transport, retry_after

# the server says something at least every 15 seconds
_QUIET = 45.0
_CHUNK = 65_536

EventType = Literal["insert", "update", "delete", "snapshot", "snapshot_end", "gap", "version", "restart"]


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    insert, update, delete: a change. snapshot: a row that was there at the beginning; snapshot_end: that was all of
    them. gap: changes were missed (`detail` says which): read the rows anew. version: the endpoint has a new version,
    whose changes follow. restart: the connection was lost amid the snapshot, which begins again.
    """

    type: EventType
    id: str | None
    """The place in the endpoint's history: give it as `after` to go on behind this event."""
    row: dict[str, Any] | None = None
    old: dict[str, Any] | None = None
    detail: dict[str, Any] | None = None
    """What else the server says."""


class Events(Iterator[Event]):
    """The changes of an endpoint as they come. `after` is where another iterator can go on."""

    def __init__(self, transport: Transport, path: str, query: dict[str, str], after: str | None) -> None:
        self.after = after
        self._transport = transport
        self._path = path
        self._query = query
        self._in_snapshot = query.get("snapshot") == "true"
        self._retries = transport.retries()
        self._response: urllib3.BaseHTTPResponse | None = None
        self._closed = False
        self._events = self._follow()

    def __next__(self) -> Event:
        return next(self._events)

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the subscription."""
        self._closed = True
        self._disconnect()

    def _follow(self) -> Iterator[Event]:
        while not self._closed:
            try:
                self._connect()
                yield from self._read()
                lost: ClientError = UnreachableError(f"{self._transport.url} has ended the stream")
            except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                lost = self._transport.unreachable(error)
            except ApiError as error:
                if error.status not in AGAIN:
                    raise
                lost = error
            if self._closed:
                return
            self._disconnect()
            if not self._retries.wait():
                raise lost
            if self._in_snapshot:
                yield Event("restart", None)

    def _connect(self) -> None:
        while True:
            query = dict(self._query)
            if not self._in_snapshot:
                query.pop("snapshot", None)
            if self.after is not None and not self._in_snapshot:
                query["after"] = self.after
            accept = {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
            self._response = response = self._transport.stream(self._path, query, accept, _QUIET)
            if response.status < 400:
                return
            problem = refused(response.status, response.headers, response.read())
            self._disconnect()
            if response.status not in AGAIN or not self._retries.wait(at_least=retry_after(response.headers)):
                raise problem

    def _disconnect(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None

    def _read(self) -> Iterator[Event]:
        """The events of one connection, until the server ends it."""
        for name, place, data in messages(self._chunks()):
            self._retries.renew()
            event = self._event(name, place, data)
            if event is not None:
                yield event

    def _chunks(self) -> Iterator[bytes]:
        while self._response is not None and (chunk := self._response.read1(_CHUNK)):
            yield chunk

    def _event(self, name: str, place: str | None, data: str) -> Event | None:
        if name == "heartbeat":
            self._seen(place)
            return None
        document: dict[str, Any] = json.loads(data) if data else {}
        if name == "error":
            raise told(int(document["status"]), document)
        if name == "snapshot_end":
            self._in_snapshot = False
        # what was missed is told once
        self._seen(document.get("to") if name == "gap" else place)
        return Event(cast(EventType, name), place or self.after, document.get("row"), document.get("old"), document)

    def _seen(self, place: str | None) -> None:
        # the middle of a snapshot is no place to go on from
        if place and not self._in_snapshot:
            self.after = place


def messages(chunks: Iterator[bytes]) -> Iterator[tuple[str, str | None, str]]:
    """Name, id and data of each message of an event stream; an unfinished one at the end is dropped, as is the rule."""
    name, place, data = "message", None, list[str]()
    for line in _lines(chunks):
        if not line:
            if data or name != "message":
                yield name, place, "\n".join(data)
            name, place, data = "message", None, []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "id":
            place = value
        elif field == "data":
            data.append(value)


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        # bytes are cut at line ends only: a chunk may end amid a character
        *lines, rest = (rest + chunk).replace(b"\r\n", b"\n").split(b"\n")
        yield from (line.decode() for line in lines)
