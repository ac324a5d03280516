"""Live events as an iterator that reconnects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

import urllib3

from headrace.client.errors import ApiError, ClientError, UnreachableError, error_of_problem, error_of_response
from headrace.client.transport import AGAIN, Transport, retry_after

# the server sends at least a heartbeat every 15 seconds
_QUIET = 45.0
_CHUNK = 65_536

EventType = Literal["insert", "update", "delete", "snapshot", "snapshot_end", "gap", "version", "restart"]


@dataclass(frozen=True)
class Event:
    """One event.

    insert, update, delete: a change. snapshot: a row of the initial snapshot; snapshot_end: the snapshot is complete.
    gap: changes were missed (see `detail`): read the rows again. version: the endpoint has a new version, whose changes
    follow. restart: the connection was lost during the snapshot, which begins again.
    """

    type: EventType
    id: str | None
    """The position of the event: pass it as `after` to resume after this event."""
    row: dict[str, Any] | None = None
    old: dict[str, Any] | None = None
    detail: dict[str, Any] | None = None
    """The complete message of the server."""


class Events(Iterator[Event]):
    """The changes of an endpoint as they happen. Another iterator can resume from `after`."""

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
        self._closed = True
        self._disconnect()

    def _follow(self) -> Iterator[Event]:
        while not self._closed:
            try:
                self._connect()
                yield from self._read()
                lost: ClientError = UnreachableError(f"{self._transport.url} ended the stream")
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
            problem = error_of_response(response.status, response.headers, response.read())
            self._disconnect()
            if response.status not in AGAIN or not self._retries.wait(at_least=retry_after(response.headers)):
                raise problem

    def _disconnect(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None

    def _read(self) -> Iterator[Event]:
        """The events of one connection, until the server ends it."""
        for name, event_id, data in messages(self._chunks()):
            self._retries.renew()
            event = self._event(name, event_id, data)
            if event is not None:
                yield event

    def _chunks(self) -> Iterator[bytes]:
        while self._response is not None and (chunk := self._response.read1(_CHUNK)):
            yield chunk

    def _event(self, name: str, event_id: str | None, data: str) -> Event | None:
        if name == "heartbeat":
            self._advance(event_id)
            return None
        document: dict[str, Any] = json.loads(data) if data else {}
        if name == "error":
            raise error_of_problem(int(document["status"]), document)
        if name == "snapshot_end":
            self._in_snapshot = False
        # a gap is reported once
        self._advance(document.get("to") if name == "gap" else event_id)
        return Event(cast(EventType, name), event_id or self.after, document.get("row"), document.get("old"), document)

    def _advance(self, event_id: str | None) -> None:
        # the client cannot resume within a snapshot
        if event_id and not self._in_snapshot:
            self.after = event_id


def messages(chunks: Iterator[bytes]) -> Iterator[tuple[str, str | None, str]]:
    """Name, id and data of each message of an event stream; an incomplete last message is ignored (per standard)."""
    name, event_id, data = "message", None, list[str]()
    for line in _lines(chunks):
        if not line:
            if data or name != "message":
                yield name, event_id, "\n".join(data)
            name, event_id, data = "message", None, []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "id":
            event_id = value
        elif field == "data":
            data.append(value)


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        # split at line ends only: a chunk may end within a character
        *lines, rest = (rest + chunk).replace(b"\r\n", b"\n").split(b"\n")
        yield from (line.decode() for line in lines)
