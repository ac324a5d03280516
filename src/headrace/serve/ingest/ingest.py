"""Streams that callers POST records to: a record is unpacked, made durable and then answered.

These paths are matched before all others, because they have their own rules for CORS, bodies and responses.
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
from headrace.serve.http.request_context import JSON, RequestContext
from headrace.serve.ingest.group_commit import GroupCommit
from headrace.serve.ingest.probes import Probe
from headrace.serve.ingest.validation import Checker
from headrace.sources.http import HttpSource
from headrace.sources.http.fields import SMALLER, inflated, record_of
from headrace.sources.http.replies import refusal, reply

_LARGE = 100_000
"""Bytes of a body that is processed in a thread, so that other requests need not wait."""
_WAITING_BYTES = 128_000_000
"""Limit of the bytes in memory that are not durable yet."""
_LOOK_SECONDS = 1.0
_RETRY_SECONDS = 5.0
_LONGEST_KEY = 255
_METHODS = "POST, OPTIONS"


Handler = Callable[[Request], Awaitable[Response]]


class Ingest:
    """All streams of one process that accept records, and their health checks."""

    def __init__(self, context: RequestContext) -> None:
        self._handlers: dict[str, tuple[str, Handler]] = {}
        for name, source in context.settings.streams.items():
            stream = _StreamCommit(name, source, context)
            self._handlers[source.path] = name, stream.post
            if source.health is not None:
                probe = Probe(source.health, source.inbox(context.settings.log), context, stream.require_room)
                self._handlers[source.health.path] = name, probe.get
        self.paths = frozenset(self._handlers)
        self.raw_paths = frozenset(path.encode() for path in self.paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name, handler = self._handlers[scope["path"]]
        scope["endpoint"], scope["headrace.endpoint"] = handler, name
        response = await handler(Request(scope, receive))
        await response(scope, receive, send)


def may_post(settings: Settings, grant: Grant) -> dict[str, HttpSource]:
    """The streams that a caller may write."""
    return {name: source for name, source in settings.streams.items() if grant.may_write(name)}


class _StreamCommit(GroupCommit):
    """Accepts the records of one stream."""

    def __init__(self, name: str, source: HttpSource, context: RequestContext) -> None:
        super().__init__(name, source.inbox(context.settings.log))
        self._source = source
        self._context = context
        validation = source.validation
        self._checker = None if validation is None else Checker(validation, context.settings.root)
        self._refuses = validation is not None and validation.mode == "refuse"
        self._unread = 0
        self._check_due = 0.0
        self._inbox_lock = threading.Lock()

    async def post(self, request: Request) -> Response:
        """Accept a record, or answer a CORS preflight."""
        origin = self._origin(request)
        try:
            if request.method == "OPTIONS":
                return Response(status_code=204, headers={"allow": _METHODS, **_preflight(request, origin)})
            if request.method != "POST":
                raise RequestError(
                    "method-not-allowed",
                    f"{request.method} is not supported",
                    status=405,
                    hint=f"supported: {_METHODS}",
                )
            return await self._answer(request, origin)
        except RequestError as error:
            return self._refused(error, origin)

    async def _answer(self, request: Request, origin: str | None) -> Response:
        self._check(self._context.grant(request))
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
            hint = "the response lists their errors; nothing of the request was stored"
            return self._refused(RequestError("invalid-documents", f"{count} not valid", hint=hint), origin, errors)
        answer = reply(self._source.reply, await self.commit(pushed), errors)
        return Response(msgspec.json.encode(answer), headers=_cors_headers(origin), media_type=JSON)

    def _pushed(self, request: Request, body: bytes) -> tuple[Pushed, list[dict[str, Any]]]:
        """The entries of a request, and the errors of its documents."""
        plain, key = inflated(body, coding_of(request), self._source.max_body), _key(request)
        record = record_of(plain, self._source.fields, request.headers)
        errors = [] if self._checker is None else self._checker.errors(record)
        # the id covers the body, not the record: fields set from the clock or at random differ when a request is
        # repeated
        id = None if key is None else id_of(key, plain, request=True)
        return Pushed([InboxEntry(Op.UPSERT, record)], id), errors

    def _check(self, grant: Grant) -> None:
        grant.check("write")
        if not grant.may_write(self.name):
            allowed = ", ".join(sorted(may_post(self._context.settings, grant))) or "no stream"
            raise RequestError(
                "stream-forbidden",
                f"this token does not allow writing to '{self.name}'",
                status=403,
                hint=f"it allows: {allowed}",
            )

    async def require_room(self) -> None:
        """Reject a record while too many wait to be read or to be made durable."""
        most = self._source.max_backlog
        if self._unread > most and time.monotonic() > self._check_due:
            self._check_due = time.monotonic() + _LOOK_SECONDS
            await asyncio.to_thread(self._count_unread)
        if self._unread > most or self.waiting_bytes > _WAITING_BYTES:
            raise RequestError(
                "inbox-full",
                "too many records wait to be read",
                status=503,
                hint="retry later",
                retry_after=_RETRY_SECONDS,
            )

    def add(self, requests: Sequence[Pushed]) -> Sequence[int | Exception]:
        with self._inbox_lock:
            outcomes = super().add(requests)
            self._unread = self._inbox.unread()
            return outcomes

    def _count_unread(self) -> None:
        with self._inbox_lock:
            self._unread = self._inbox.unread()

    def _refused(self, error: RequestError, origin: str | None, errors: Sequence[Any] = ()) -> Response:
        status, headers, body = problem(error)
        if errors:
            body = msgspec.json.encode({**msgspec.json.decode(body), "errors": errors})
        # the body may have changed since its length was computed
        named = {name.decode(): value.decode() for name, value in headers if name != b"content-length"}
        if error.status == 405:
            named["allow"] = _METHODS
        if self._source.refusal is not None:
            body, named["content-type"] = msgspec.json.encode(refusal(self._source.refusal, error, errors)), JSON
        return Response(body, status, {**named, **_cors_headers(origin)})

    def _origin(self, request: Request) -> str | None:
        """The origin that may read the response."""
        origin, allowed = request.headers.get("origin"), self._source.cors
        return None if origin is None else "*" if "*" in allowed else origin if origin in allowed else None


def _cors_headers(origin: str | None) -> dict[str, str]:
    if origin is None:
        return {}
    return {"access-control-allow-origin": origin, "access-control-expose-headers": "Retry-After", "vary": "Origin"}


def _preflight(request: Request, origin: str | None) -> dict[str, str]:
    """What a page may send: any header, because the project decides which headers become fields."""
    requested = request.headers.get("access-control-request-headers", "")
    allowed = {"access-control-allow-methods": "POST", "access-control-max-age": "86400"}
    return {**_cors_headers(origin), **allowed, "access-control-allow-headers": requested} if origin is not None else {}


def _key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= _LONGEST_KEY:
        message = f"Idempotency-Key must have 1 to {_LONGEST_KEY} characters"
        raise RequestError("bad-idempotency-key", message, hint="use a UUID, for example")
    return key
