"""Changes of tables that callers push: checked, made durable, and answered then."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from headrace.core.errors import RequestError, did_you_mean
from headrace.log.inbox import Inbox, Pushed
from headrace.serve.access.grants import Grant
from headrace.serve.base.settings import Settings
from headrace.serve.http.replies import json_body, require_type
from headrace.serve.http.request_context import Front
from headrace.serve.ingest.group_commit import Desk
from headrace.tables.push.rows import PushRows, decode

_FEW = 200
"""Changes that are looked at on the event loop: what takes longer must not hold up other callers."""


class Pushing:
    """The tables of one process that take changes."""

    def __init__(self, settings: Settings) -> None:
        self._desks = {
            name: _Desk(PushRows(name, table.declared), Inbox(settings.log, name, table.max_age))
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


class _Desk(Desk):
    """Where the changes of one table are taken."""

    def __init__(self, rows: PushRows, inbox: Inbox) -> None:
        super().__init__(rows.table, inbox)
        self._rows = rows

    async def checked(self, document: Any, key: str | None) -> Pushed:
        """What a request adds."""
        changes = document.get("changes") if isinstance(document, dict) else None
        if isinstance(changes, list) and len(changes) > _FEW:
            return await asyncio.to_thread(self._rows.pushed, document, key)
        return self._rows.pushed(document, key)


def routes(front: Front, pushing: Pushing) -> list[BaseRoute]:
    """The route of REST."""

    async def push(request: Request) -> Response:
        """Take changes of a table."""
        grant = front.grant(request)
        require_type(request)
        name = request.path_params["name"]
        document = await json_body(request, front.settings.spec.limits.body, decode)
        if name in pushing.names(grant):
            request.scope["headrace.endpoint"] = name
        answer = await pushing.push(grant, name, document, request.headers.get("idempotency-key"))
        return front.answer(request, msgspec.json.encode(answer))

    return [Route("/tables/{name}", push, methods=["POST"])]
