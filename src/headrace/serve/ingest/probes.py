"""Whether a stream would take a record now, for load balancers."""

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
from headrace.serve.http.request_context import JSON, Front
from headrace.serve.ingest.group_commit import unavailable
from headrace.sources.http.health import HttpHealth
from headrace.sources.http.replies import health, refusal

_LOG = logging.getLogger(__name__)
_TRY_SECONDS = 1.0
_METHODS = "GET, HEAD"
_NOT_KEPT = {"cache-control": "no-store"}


class Probe:
    """Answers for one stream. `require_room` raises what callers would be told when there is none."""

    def __init__(
        self, asked: HttpHealth, inbox: Inbox, front: Front, require_room: Callable[[], Awaitable[None]]
    ) -> None:
        self._asked = asked
        self._inbox = inbox
        self._front = front
        self._require_room = require_room
        self._due = 0.0
        self._stuck = False
        """Nothing could be made durable when that was last tried."""

    async def get(self, request: Request) -> Response:
        """The answer."""
        try:
            self._front.check_host(request.headers.get("host"))
            if request.method not in ("GET", "HEAD"):
                message = f"{request.method} is not known here"
                raise RequestError("method-not-allowed", message, status=405, hint=f"known: {_METHODS}")
        except RequestError as error:
            return _problem(error, {"allow": _METHODS} if error.status == 405 else {})
        try:
            await self._require_room()
            await self._require_durable()
        except RequestError as error:
            return self._unwell(RequestError(error.code, error.message, status=self._asked.status, hint=error.hint))
        return Response(msgspec.json.encode(health(self._asked.reply)), headers=_NOT_KEPT, media_type=JSON)

    async def _require_durable(self) -> None:
        if time.monotonic() > self._due:
            self._due = time.monotonic() + _TRY_SECONDS
            try:
                await asyncio.to_thread(self._inbox.probe)
                self._stuck = False
            except OSError as error:
                _LOG.warning("nothing that is sent to %s could be made durable: %s", self._asked.path, error)
                self._stuck = True
        if self._stuck:
            raise unavailable()

    def _unwell(self, error: RequestError) -> Response:
        if self._asked.refusal is None:
            return _problem(error)
        said = refusal(self._asked.refusal, error)
        return Response(msgspec.json.encode(said), error.status, _NOT_KEPT, media_type=JSON)


def _problem(error: RequestError, more: dict[str, str] | None = None) -> Response:
    status, headers, body = problem(error)
    return Response(body, status, {**{name.decode(): value.decode() for name, value in headers}, **(more or {})})
