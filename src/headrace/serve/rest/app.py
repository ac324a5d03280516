"""The ASGI application of an API process: every request comes in here and every error goes out here.

One row by its key is what is asked most, so it is answered before any router has a look; all else goes to Starlette.
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
from headrace.serve.http.request_context import Client, Front
from headrace.serve.ingest.ingest import Ingest
from headrace.serve.rest.routes import routes
from headrace.serve.rest.rows import Reply, RowRoutes
from headrace.serve.sql.pool import Answerers

_LOG = logging.getLogger(__name__)
_WRITE_SECONDS = 1.0
_AT_ONCE = 1024
"""Requests that a process has under way beside live streams, whose limit is another; single rows never wait."""
_EXPOSED = ["ETag", "Link", "Retry-After", "X-Headrace-Version", "X-Next-Cursor"]
_ALLOWED = ["Authorization", "Content-Type", "Idempotency-Key", "If-None-Match", "Last-Event-ID", "X-API-Key"]


def create_app(settings: Settings) -> ASGIApp:
    """The application of one API process."""
    front = Front(settings, Stores(settings))
    return App(front, _router(front))


class App:
    """Takes requests, counts them, and lets no error out that is not said in the right shape."""

    def __init__(self, front: Front, router: ASGIApp) -> None:
        self._front = front
        self._router = router
        self._rows = RowRoutes(front)
        self._under_way = 0
        self._most = _AT_ONCE + front.settings.spec.limits.subscribers
        self._ingest = Ingest(front)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, one WebSocket, or the life of the process."""
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        if scope["path"] in self._ingest.paths:
            await self._routed(self._ingest, scope, receive, send)
            return
        reply = self._rows.asked(scope)
        if reply is None:
            await self._routed(self._router, scope, receive, send)
        else:
            await _send(reply, send)

    def row(self, path: bytes, headers: Headers, client: Client) -> Reply | None:
        """The answer to a GET of a path without parameters, if it is for one row."""
        return None if path in self._ingest.raw_paths else self._rows.told(path, headers, client)

    async def _routed(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        seen = _StatusRecorder(send, head=scope["method"] == "HEAD")
        self._under_way += 1
        try:
            if self._under_way > self._most:
                await _send(problem(_busy(self._most)), seen)
            else:
                await app(scope, receive, seen)
        except asyncio.CancelledError:  # the caller has gone
            raise
        except Exception:
            _LOG.exception("a request to %s could not be answered", scope["path"])
            if not seen.status:
                await _send(problem(bug()), seen)
        finally:
            self._under_way -= 1
        route, name = _labels(scope)
        self._front.meters.count("rest", route, name, seen.status, time.perf_counter() - began)


class _StatusRecorder:
    """Passes an answer on and notes its status. The answer to HEAD has no body."""

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


def _router(front: Front) -> ASGIApp:
    answerers = Answerers(front.settings)

    @asynccontextmanager
    async def life(_app: Starlette) -> AsyncIterator[None]:
        writing = asyncio.create_task(_write_meters(front))
        try:
            yield
        finally:
            writing.cancel()
            answerers.close()
            front.meters.write()
            front.stores.close()
            front.callers.close()

    cors = Middleware(
        CORSMiddleware,
        allow_origins=front.settings.spec.cors,
        allow_methods=["GET", "HEAD", "POST"],
        allow_headers=_ALLOWED,
        expose_headers=_EXPOSED,
    )
    return Starlette(
        routes=routes(front, answerers),
        middleware=[cors] if front.settings.spec.cors else [],
        exception_handlers={RequestError: _refused, HTTPException: _odd, Exception: _broken},
        lifespan=life,
    )


async def _write_meters(front: Front) -> None:
    while True:
        await asyncio.sleep(_WRITE_SECONDS)
        front.meters.write()


async def _refused(_connection: Request | WebSocket, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return _response(error)


async def _broken(_request: Request, _error: Exception) -> Response:
    return _response(bug())  # it is raised again after that, and written down above


async def _odd(request: Request, error: Exception) -> Response:
    """What the router itself refuses."""
    assert isinstance(error, HTTPException)
    allow = (error.headers or {}).get("Allow", "")
    if request.method == "OPTIONS" and allow:
        return Response(status_code=204, headers={"Allow": f"{allow}, OPTIONS"})
    if error.status_code == 405:
        found = RequestError(
            "method-not-allowed", f"{request.method} is not known here", status=405, hint=f"known: {allow}"
        )
        return _response(found, {"Allow": allow})
    if error.status_code == 404:
        hint = "GET / lists the endpoints; /docs describes them"
        return _response(RequestError("no-route", "there is nothing at this address", status=404, hint=hint))
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
        f"more than {most:,} requests are under way in this process",
        status=503,
        hint="ask again in a moment, or another node; 'serve.workers' sets how many processes answer",
    )


def _labels(scope: MutableMapping[str, Any]) -> tuple[str, str]:
    """The route that answered and the endpoint it was about; both only if they exist, so that they stay few."""
    door = scope.get("headrace.endpoint", "")
    endpoint = scope.get("endpoint")
    return getattr(endpoint, "__name__", "none"), door
