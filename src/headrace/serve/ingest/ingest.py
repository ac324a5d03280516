"""Records of streams that callers POST: unpacked, made durable, and answered then.

These paths are looked at before all others, since they have rules of their own for browsers, bodies and answers.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.core.endpoints import Op
from headrace.core.errors import RequestError
from headrace.log.inbox import InboxEntry, Pushed, id_of
from headrace.serve.access.grants import Grant
from headrace.serve.base.settings import Settings
from headrace.serve.http.problems import problem
from headrace.serve.http.replies import body_of, check_json, coding_of, require_type
from headrace.serve.http.request_context import JSON, Front
from headrace.serve.ingest.group_commit import Desk
from headrace.serve.ingest.probes import Probe
from headrace.serve.ingest.validation import Checker
from headrace.sources.http import HttpSource
from headrace.sources.http.fields import SMALLER, inflated, record_of
from headrace.sources.http.replies import refusal, reply

_LARGE = 100_000
"""Bytes of a body that is looked at in a thread: others must not wait for it."""
_WAITING_BYTES = 128_000_000
"""Of records in memory that are not durable yet."""
_LOOK_SECONDS = 1.0
_RETRY_SECONDS = 5.0
_LONGEST_KEY = 255
_METHODS = "POST, OPTIONS"


Handler = Callable[[Request], Awaitable[Response]]


class Ingest:
    """All streams of one process that records are POSTed to, and whether they take any."""

    def __init__(self, front: Front) -> None:
        self._handlers: dict[str, tuple[str, Handler]] = {}
        for name, source in front.settings.streams.items():
            gate = _Gate(name, source, front)
            self._handlers[source.path] = name, gate.post
            if source.health is not None:
                probe = Probe(source.health, source.inbox(front.settings.log), front, gate.require_room)
                self._handlers[source.health.path] = name, probe.get
        self.paths = frozenset(self._handlers)
        self.raw_paths = frozenset(path.encode() for path in self.paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        name, handler = self._handlers[scope["path"]]
        scope["endpoint"], scope["headrace.endpoint"] = handler, name
        response = await handler(Request(scope, receive))
        await response(scope, receive, send)


def may_post(settings: Settings, grant: Grant) -> dict[str, HttpSource]:
    """The streams that a caller may write."""
    return {name: source for name, source in settings.streams.items() if grant.may_write(name)}


class _Gate(Desk):
    """Where the records of one stream are taken."""

    def __init__(self, name: str, source: HttpSource, front: Front) -> None:
        super().__init__(name, source.inbox(front.settings.log))
        self._source = source
        self._front = front
        checked = source.validation
        self._checker = None if checked is None else Checker(checked, front.settings.root)
        self._refuses = checked is not None and checked.mode == "refuse"
        self._unread = 0
        self._look_due = 0.0
        self._alone = threading.Lock()

    async def post(self, request: Request) -> Response:
        """Take a record, or say what a page from elsewhere may do."""
        origin = self._origin(request)
        try:
            if request.method == "OPTIONS":
                return Response(status_code=204, headers={"allow": _METHODS, **_preflight(request, origin)})
            if request.method != "POST":
                raise RequestError(
                    "method-not-allowed", f"{request.method} is not known here", status=405, hint=f"known: {_METHODS}"
                )
            return await self._answer(request, origin)
        except RequestError as error:
            return self._refused(error, origin)

    async def _answer(self, request: Request, origin: str | None) -> Response:
        self._check(self._front.grant(request))
        require_type(request)
        check_json(request)
        await self.require_room()
        body = await body_of(request, self._source.max_body, SMALLER)
        if len(body) < _LARGE and self._checker is None:
            pushed, errors = self._pushed(request, body)
        else:
            pushed, errors = await asyncio.to_thread(self._pushed, request, body)
        if errors and self._refuses:
            count = f"{len(errors)} document{'' if len(errors) == 1 else 's'}"
            hint = "the answer names them, with what is wrong; nothing of the request was taken"
            return self._refused(RequestError("invalid-documents", f"{count} not valid", hint=hint), origin, errors)
        said = reply(self._source.reply, await self.take(pushed), errors)
        return Response(msgspec.json.encode(said), headers=_open_to(origin), media_type=JSON)

    def _pushed(self, request: Request, body: bytes) -> tuple[Pushed, list[dict[str, Any]]]:
        """What a request adds, and what is wrong with the documents in it."""
        plain, key = inflated(body, coding_of(request), self._source.max_body), _key(request)
        record = record_of(plain, self._source.fields, request.headers)
        errors = [] if self._checker is None else self._checker.errors(record)
        # the body and not the record: what the clock or chance has set is another one when a request comes again
        id = None if key is None else id_of(key, plain, request=True)
        return Pushed([InboxEntry(Op.UPSERT, record)], id), errors

    def _check(self, grant: Grant) -> None:
        grant.check("write")
        if not grant.may_write(self.name):
            allowed = ", ".join(sorted(may_post(self._front.settings, grant))) or "no stream"
            raise RequestError(
                "stream-forbidden",
                f"this token does not allow to write '{self.name}'",
                status=403,
                hint=f"it allows: {allowed}",
            )

    async def require_room(self) -> None:
        """Refuse a record while too much waits to be read, or to be made durable."""
        most = self._source.max_backlog
        if self._unread > most and time.monotonic() > self._look_due:
            self._look_due = time.monotonic() + _LOOK_SECONDS
            await asyncio.to_thread(self._look)
        if self._unread > most or self.waiting_bytes > _WAITING_BYTES:
            raise RequestError(
                "inbox-full",
                "more records wait to be read than there is room for",
                status=503,
                hint="send it again later",
                retry_after=_RETRY_SECONDS,
            )

    def add(self, requests: Sequence[Pushed]) -> Sequence[int | Exception]:
        """Make records durable."""
        with self._alone:
            found = super().add(requests)
            self._unread = self._inbox.unread()
            return found

    def _look(self) -> None:
        with self._alone:
            self._unread = self._inbox.unread()

    def _refused(self, error: RequestError, origin: str | None, errors: Sequence[Any] = ()) -> Response:
        status, headers, body = problem(error)
        if errors:
            body = msgspec.json.encode({**msgspec.json.decode(body), "errors": errors})
        # its length is that of the body that goes out
        named = {name.decode(): value.decode() for name, value in headers if name != b"content-length"}
        if error.status == 405:
            named["allow"] = _METHODS
        if self._source.refusal is not None:
            body, named["content-type"] = msgspec.json.encode(refusal(self._source.refusal, error, errors)), JSON
        return Response(body, status, {**named, **_open_to(origin)})

    def _origin(self, request: Request) -> str | None:
        """The page's origin that may see the answer."""
        asked, allowed = request.headers.get("origin"), self._source.cors
        return None if asked is None else "*" if "*" in allowed else asked if asked in allowed else None


def _open_to(origin: str | None) -> dict[str, str]:
    if origin is None:
        return {}
    return {"access-control-allow-origin": origin, "access-control-expose-headers": "Retry-After", "vary": "Origin"}


def _preflight(request: Request, origin: str | None) -> dict[str, str]:
    """What a page may send: any header, since the project says which become fields."""
    asked = request.headers.get("access-control-request-headers", "")
    allowed = {"access-control-allow-methods": "POST", "access-control-max-age": "86400"}
    return {**_open_to(origin), **allowed, "access-control-allow-headers": asked} if origin is not None else {}


def _key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= _LONGEST_KEY:
        message = f"Idempotency-Key is not a text of 1 to {_LONGEST_KEY} characters"
        raise RequestError("bad-idempotency-key", message, hint="a UUID will do")
    return key
