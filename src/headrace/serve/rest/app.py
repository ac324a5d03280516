"""The ASGI application of an API process: all requests and all error responses pass through it.

Requests for one row by its key are the most frequent ones, so they are answered before routing; Starlette gets the
others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from headrace.core.errors import RequestError
from headrace.serve.access.stores import Stores
from headrace.serve.base.settings import Settings
from headrace.serve.http.problems import Headers, bug, problem
from headrace.serve.http.request_context import Client, RequestContext
from headrace.serve.ingest.ingest import Ingest
from headrace.serve.rest.routes import routes
from headrace.serve.rest.rows import Reply, RowRoutes
from headrace.serve.sql.pool import QueryProcesses

_LOG = logging.getLogger(__name__)
_WRITE_SECONDS = 1.0
_AT_ONCE = 1024
"""Concurrent requests of a process, apart from live streams, which have their own limit; single rows never wait."""
_EXPOSED = ["ETag", "Link", "Retry-After", "X-Headrace-Version", "X-Next-Cursor"]
_ALLOWED = ["Authorization", "Content-Type", "Idempotency-Key", "If-None-Match", "Last-Event-ID", "X-API-Key"]


def create_app(settings: Settings) -> ASGIApp:
    context = RequestContext(settings, Stores(settings))
    return App(context, _router(context))


class App:
    """Dispatches requests, counts them, and turns every error into a problem document."""

    def __init__(self, context: RequestContext, router: ASGIApp) -> None:
        self._context = context
        self._router = router
        self._rows = RowRoutes(context)
        self._under_way = 0
        self._most = _AT_ONCE + context.settings.spec.limits.subscribers
        self._ingest = Ingest(context)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, one WebSocket, or the lifespan of the process."""
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        if scope["path"] in self._ingest.paths:
            await self._routed(self._ingest, scope, receive, send)
            return
        reply = self._rows.reply(scope)
        if reply is None:
            await self._routed(self._router, scope, receive, send)
        else:
            await _send(reply, send)

    def row(self, path: bytes, headers: Headers, client: Client) -> Reply | None:
        """The response to a GET of a path without parameters, if it is for one row."""
        return None if path in self._ingest.raw_paths else self._rows.reply_to_path(path, headers, client)

    async def _routed(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        recorder = _StatusRecorder(send, head=scope["method"] == "HEAD")
        self._under_way += 1
        try:
            if self._under_way > self._most:
                await _send(problem(_busy(self._most)), recorder)
            else:
                await app(scope, receive, recorder)
        except asyncio.CancelledError:  # the caller has disconnected
            raise
        except Exception:
            _LOG.exception("the request to %s failed", scope["path"])
            if not recorder.status:
                await _send(problem(bug()), recorder)
        finally:
            self._under_way -= 1
        route, name = _labels(scope)
        self._context.meters.count("rest", route, name, recorder.status, time.perf_counter() - began)


class _StatusRecorder:
    """Forwards a response and records its status. The response to HEAD has no body."""

    def __init__(self, send: Send, *, head: bool) -> None:
        self._send = send
        self._head = head
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif self._head and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await self._send(message)


def _router(context: RequestContext) -> ASGIApp:
    processes = QueryProcesses(context.settings)

    @asynccontextmanager
    async def life(_app: Starlette) -> AsyncIterator[None]:
        writing = asyncio.create_task(_write_meters(context))
        try:
            yield
        finally:
            writing.cancel()
            processes.close()
            context.meters.write()
            context.stores.close()
            context.callers.close()

    cors = Middleware(
        CORSMiddleware,
        allow_origins=context.settings.spec.cors,
        allow_methods=["GET", "HEAD", "POST"],
        allow_headers=_ALLOWED,
        expose_headers=_EXPOSED,
    )
    return Starlette(
        routes=routes(context, processes),
        middleware=[cors] if context.settings.spec.cors else [],
        exception_handlers={RequestError: _refused, HTTPException: _router_error, Exception: _broken},
        lifespan=life,
    )


async def _write_meters(context: RequestContext) -> None:
    while True:
        await asyncio.sleep(_WRITE_SECONDS)
        context.meters.write()


async def _refused(_connection: Request | WebSocket, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return _response(error)


async def _broken(_request: Request, _error: Exception) -> Response:
    return _response(bug())  # Starlette raises it again, and `_routed` logs it


async def _router_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    allow = (error.headers or {}).get("Allow", "")
    if request.method == "OPTIONS" and allow:
        return Response(status_code=204, headers={"Allow": f"{allow}, OPTIONS"})
    if error.status_code == 405:
        refused = RequestError(
            "method-not-allowed", f"{request.method} is not supported", status=405, hint=f"supported: {allow}"
        )
        return _response(refused, {"Allow": allow})
    if error.status_code == 404:
        hint = "GET / lists the endpoints; /docs describes them"
        return _response(RequestError("no-route", "no resource has this URL", status=404, hint=hint))
    return _response(RequestError("bad-request", str(error.detail), status=error.status_code))


def _response(error: RequestError, more: dict[str, str] | None = None) -> Response:
    status, headers, body = problem(error)
    named = {name.decode(): value.decode() for name, value in headers}
    return Response(body, status, {**named, **(more or {})})


async def _send(reply: Reply, send: Send) -> None:
    status, headers, body = reply
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _busy(most: int) -> RequestError:
    return RequestError(
        "busy",
        f"more than {most:,} requests are being processed",
        status=503,
        hint="retry in a moment, or use another node; 'serve.workers' sets the number of processes",
    )


def _labels(scope: MutableMapping[str, Any]) -> tuple[str, str]:
    """The route and the endpoint of a request, both only if they exist, so that the number of labels stays small."""
    name = scope.get("headrace.endpoint", "")
    endpoint = scope.get("endpoint")
    return getattr(endpoint, "__name__", "none"), name
