"""Changes of tables that callers push: checked, made durable together, and answered then.

While one commit is under way, what comes meanwhile waits for the next: many requests share one, and a single one waits
for nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from headrace.core.errors import RequestError, did_you_mean
from headrace.log.inbox import Inbox, Pushed, RepeatedIdError
from headrace.serve.front import Front
from headrace.serve.grants import Grant
from headrace.serve.replies import json_body
from headrace.serve.settings import Settings
from headrace.tables._push_rows import PushRows, decode

_LOG = logging.getLogger(__name__)
_TOGETHER = 20_000
"""Changes of one commit, more or less."""
_FEW = 200
"""Changes that are looked at on the event loop: what takes longer must not hold up other callers."""


class Pushing:
    """The tables of one process that take changes."""

    def __init__(self, settings: Settings) -> None:
        self._desks = {
            name: _Desk(PushRows(name, table.own_shape), Inbox(settings.log, name, table.max_age))
            for name, table in settings.tables.items()
        }

    def names(self, grant: Grant) -> list[str]:
        """The tables that a caller may write."""
        return [name for name in sorted(self._desks) if grant.may_write(name)]

    async def push(self, grant: Grant, name: str, document: Any, key: str | None) -> dict[str, int]:
        """Take changes; answers when they are durable. A RequestError says why they are not taken."""
        desk = self._desk(grant, name)
        pushed = await desk.checked(document, key)
        return {"accepted": len(pushed.entries), "position": await desk.take(pushed)}

    def _desk(self, grant: Grant, name: str) -> _Desk:
        grant.check("write")
        shown = name[:100]
        if not grant.may_write(name):
            raise RequestError(
                "table-forbidden",
                f"this token does not allow to write '{shown}'",
                status=403,
                hint=f"it allows: {', '.join(self.names(grant)) or 'no table'}",
            )
        if name not in self._desks:
            hint = did_you_mean(shown, self.names(grant), "tables that take changes")
            raise RequestError("unknown-table", f"no table '{shown}' takes changes", status=404, hint=hint)
        return self._desks[name]


class _Desk:
    """Where the changes of one table are taken."""

    def __init__(self, rows: PushRows, inbox: Inbox) -> None:
        self._rows = rows
        self._inbox = inbox
        self._waiting: list[tuple[Pushed, asyncio.Future[int]]] = []
        self._work: asyncio.Task[None] | None = None

    async def checked(self, document: Any, key: str | None) -> Pushed:
        """What a request adds."""
        changes = document.get("changes") if isinstance(document, dict) else None
        if isinstance(changes, list) and len(changes) > _FEW:
            return await asyncio.to_thread(self._rows.pushed, document, key)
        return self._rows.pushed(document, key)

    async def take(self, pushed: Pushed) -> int:
        """The position at which it is, when it is durable."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((pushed, future))
        if self._work is None:
            self._work = asyncio.create_task(self._commit())
        position: int = await future
        return position

    async def _commit(self) -> None:
        try:
            while self._waiting:
                await self._commit_some(self._next())
        finally:
            self._work = None

    def _next(self) -> list[tuple[Pushed, asyncio.Future[int]]]:
        count, changes = 0, 0
        for pushed, _ in self._waiting:
            count, changes = count + 1, changes + len(pushed.entries)
            if changes >= _TOGETHER:
                break
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    async def _commit_some(self, taken: list[tuple[Pushed, asyncio.Future[int]]]) -> None:
        found: Sequence[int | Exception]
        try:
            found = await asyncio.to_thread(self._inbox.add, [pushed for pushed, _ in taken])
        except OSError as error:
            _LOG.warning("changes of '%s' could not be made durable: %s", self._rows.table, error)
            found = [_unavailable() for _ in taken]
        except Exception as error:
            found = [error for _ in taken]
        for (_, future), outcome in zip(taken, found, strict=True):
            if future.done():  # the caller has gone
                continue
            if isinstance(outcome, int):
                future.set_result(outcome)
            else:
                future.set_exception(_reused() if isinstance(outcome, RepeatedIdError) else outcome)


def routes(front: Front, pushing: Pushing) -> list[BaseRoute]:
    """The route of REST."""

    async def push(request: Request) -> Response:
        """Take changes of a table."""
        grant = front.grant(request)
        # a page from elsewhere may send without asking what has no type of its own
        if "content-type" not in request.headers:
            raise RequestError("not-json", "the body has no type", status=415, hint="Content-Type: application/json")
        name = request.path_params["name"]
        document = await json_body(request, front.settings.spec.limits.body, decode)
        if name in pushing.names(grant):
            request.scope["headrace.endpoint"] = name
        answer = await pushing.push(grant, name, document, request.headers.get("idempotency-key"))
        return front.answer(request, msgspec.json.encode(answer))

    return [Route("/tables/{name}", push, methods=["POST"])]


def _reused() -> RequestError:
    return RequestError(
        "idempotency-key-reused",
        "this key, or the id of a change, came before with other changes",
        status=422,
        hint="the same key is for the same request sent again; take a new one for other changes",
    )


def _unavailable() -> RequestError:
    return RequestError(
        "inbox-unavailable",
        "the changes could not be made durable",
        status=503,
        hint="send them again with the same idempotency key; the log of the node says what failed",
    )
