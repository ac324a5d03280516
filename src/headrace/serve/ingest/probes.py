"""Health checks of a stream for load balancers: whether it would accept a record now."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.core.errors import RequestError
from headrace.log.inbox import Inbox
from headrace.serve.http.problems import problem
from headrace.serve.http.request_context import JSON, RequestContext
from headrace.serve.ingest.group_commit import unavailable
from headrace.sources.http.health import HttpHealth
from headrace.sources.http.replies import health, refusal

_LOG = logging.getLogger(__name__)
_TRY_SECONDS = 1.0
_METHODS = "GET, HEAD"
_NO_STORE = {"cache-control": "no-store"}


class Probe:
    """The health check of one stream. `require_room` raises the error that callers would get."""

    def __init__(
        self, options: HttpHealth, inbox: Inbox, context: RequestContext, require_room: Callable[[], Awaitable[None]]
    ) -> None:
        self._options = options
        self._inbox = inbox
        self._context = context
        self._require_room = require_room
        self._due = 0.0
        self._failed = False
        """Whether the last attempt to make something durable failed."""

    async def get(self, request: Request) -> Response:
        try:
            self._context.check_host(request.headers.get("host"))
            if request.method not in ("GET", "HEAD"):
                message = f"{request.method} is not supported"
                raise RequestError("method-not-allowed", message, status=405, hint=f"supported: {_METHODS}")
        except RequestError as error:
            return _problem(error, {"allow": _METHODS} if error.status == 405 else {})
        try:
            await self._require_room()
            await self._require_durable()
        except RequestError as error:
            return self._unhealthy(
                RequestError(error.code, error.message, status=self._options.status, hint=error.hint)
            )
        return Response(msgspec.json.encode(health(self._options.reply)), headers=_NO_STORE, media_type=JSON)

    async def _require_durable(self) -> None:
        if time.monotonic() > self._due:
            self._due = time.monotonic() + _TRY_SECONDS
            try:
                await asyncio.to_thread(self._inbox.probe)
                self._failed = False
            except OSError as error:
                _LOG.warning("requests to %s could not be made durable: %s", self._options.path, error)
                self._failed = True
        if self._failed:
            raise unavailable()

    def _unhealthy(self, error: RequestError) -> Response:
        if self._options.refusal is None:
            return _problem(error)
        document = refusal(self._options.refusal, error)
        return Response(msgspec.json.encode(document), error.status, _NO_STORE, media_type=JSON)


def _problem(error: RequestError, more: dict[str, str] | None = None) -> Response:
    status, headers, body = problem(error)
    return Response(body, status, {**{name.decode(): value.decode() for name, value in headers}, **(more or {})})
